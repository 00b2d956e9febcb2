/* SPDX-License-Identifier: MIT */
/* Which kernels there are, and the way from the emulation's launches to them.
 *
 * MOE_EMULATION_PTX names a folder: of nvcc's texts (*.ptx), or of its objects (*.o) with portable
 * code that is not compressed. A program of the tests then runs that code in place of the kernels'
 * sources. MOE_EMULATION_SEED is added to the number of each launch, which gives the order of its
 * blocks, warps and lanes. */
#include "ptx_warp.h"

#include "cuda_runtime.h"
#include "watch.h"

#include <cxxabi.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

#include <algorithm>
#include <atomic>

namespace ptx
{
namespace
{
struct found_kernel {
    module *m;
    size_t entry;
    std::unique_ptr<kernel> parsed;
};

struct everything {
    std::deque<module> modules;
    std::map<std::string, found_kernel> kernels; /* by their names as c++filt prints them */
};

everything &all(void)
{
    static everything one;
    return one;
}

std::string read_file(const std::string &path)
{
    std::string out;
    FILE *file = fopen(path.c_str(), "rb");
    char bytes[65536];
    for (size_t n; file != nullptr && (n = fread(bytes, 1, sizeof(bytes), file)) > 0;)
        out.append(bytes, n);
    if (file != nullptr)
        fclose(file);
    return out;
}

/* Texts begin with a version and end at the first byte that is none of a text. */
void add_texts(const std::string &file)
{
    const std::string mark = "\n.version ";
    for (size_t at = file.find(mark); at != std::string::npos; at = file.find(mark, at + 1)) {
        size_t end = at;
        while (end < file.size() &&
               (isprint((unsigned char)file[end]) || isspace((unsigned char)file[end])))
            end++;
        add_module(file.substr(at, end - at));
    }
}

void read_folder(const char *folder)
{
    DIR *open = opendir(folder);
    for (dirent *entry; open != nullptr && (entry = readdir(open)) != nullptr;) {
        std::string name = entry->d_name;
        if (name.size() > 4 && name.substr(name.size() - 4) == ".ptx")
            add_module(read_file(std::string(folder) + "/" + name));
        else if (name.size() > 5 && name.substr(name.size() - 5) == ".cu.o")
            add_texts(read_file(std::string(folder) + "/" + name));
    }
    if (open != nullptr)
        closedir(open);
}

std::string plain(const char *name)
{
    int status;
    char *text = abi::__cxa_demangle(name, nullptr, nullptr, &status);
    std::string out = text != nullptr ? text : name;
    free(text);
    return out;
}

const void *find_launched(const char *name)
{
    /* "emulation::named<&(void f<1>(int))>" */
    std::string text = plain(name);
    size_t open = text.find('('), close = text.rfind(')');
    if (open == std::string::npos)
        emulation::broken(("a launch without a name: " + text).c_str());
    text = text.substr(open + 1, close - open - 1);
    const kernel *k = find_kernel(text);
    if (k == nullptr)
        emulation::broken(("nvcc's code has no kernel " + text).c_str());
    return k;
}

size_t shared_bytes_of(const void *found, size_t variable)
{
    return ((const kernel *)found)->shared_bytes + variable;
}

void run_found(const void *found, const std::vector<std::string> &arguments, unsigned n_threads,
               char *shared, size_t variable, uint32_t number)
{
    const kernel *k = (const kernel *)found;
    if (n_threads > k->max_threads)
        emulation::broken("more threads than the kernel was compiled for");
    if (arguments.size() != k->parameter_at.size())
        emulation::broken("a launch with another number of parameters than the kernel's");
    std::vector<uint64_t> parameters(k->all_parameter_bytes / 8 + 1);
    for (size_t n = 0; n < arguments.size(); n++) {
        if (arguments[n].size() != k->parameter_bytes[n])
            emulation::broken("a parameter of another size than the kernel's");
        memcpy((char *)parameters.data() + k->parameter_at[n], arguments[n].data(),
               arguments[n].size());
    }
    for (unsigned thread = 0; thread < n_threads && !k->knows_early; thread++) {
        emulation::here.thread.x = thread;
        emulation::wait_for_stream();
    }
    block b = {k, (const char *)parameters.data(), shared, variable, n_threads, {}};
    run_block(&b, number);
}

const emulation::translator translator = {find_launched, shared_bytes_of, run_found};
} // namespace

void add_module(std::string text)
{
    all().modules.push_back({std::move(text), {}});
    module *m = &all().modules.back();
    const std::string mark = ".entry ";
    for (size_t at = m->text.find(mark); at != std::string::npos; at = m->text.find(mark, at + 1)) {
        size_t name = at + mark.size(), open = m->text.find('(', name);
        all().kernels[plain(m->text.substr(name, open - name).c_str())] = {m, at, nullptr};
    }
}

const kernel *find_kernel(const std::string &name)
{
    auto found = all().kernels.find(name);
    if (found == all().kernels.end())
        return nullptr;
    if (found->second.parsed == nullptr)
        found->second.parsed = parse(found->second.m, found->second.entry);
    return found->second.parsed.get();
}

size_t parse_all(void)
{
    for (auto &one : all().kernels)
        find_kernel(one.first);
    return all().kernels.size();
}

bool is_table(const void *memory, size_t bytes)
{
    for (const module &m : all().modules)
        for (const auto &[name, table] : m.tables)
            if (memory >= table.data() &&
                (const char *)memory + bytes <= table.data() + table.size())
                return true;
    return false;
}
} // namespace ptx

const emulation::translator *emulation::translator_asked_for(void)
{
    const char *folder = getenv("MOE_EMULATION_PTX");
    if (folder == nullptr)
        return nullptr;
    ptx::read_folder(folder);
    if (ptx::all().kernels.empty()) {
        printf("skipped: no portable code in %s\n", folder);
        exit(77);
    }
    return &ptx::translator;
}
