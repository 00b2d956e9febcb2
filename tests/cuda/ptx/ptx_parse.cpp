/* SPDX-License-Identifier: MIT */
/* Reads a kernel out of the text of a module.
 *
 * A body is statements that end at ';', labels, and braces around registers of few instructions.
 * Names of registers, parameters, variables and labels stand in one table; what is declared again
 * is another from there on. A call is replaced by the function's body: its parameters are registers
 * of the caller. */
#include "ptx_module.h"

#include "watch.h"

#include <algorithm>
#include <cctype>

namespace ptx
{
namespace
{
struct parser {
    module *m;
    kernel *k;
    std::map<std::string, operand> registers; /* and what a call passes */
    std::map<std::string, uint64_t> parameters, shared;
    std::map<std::string, uint32_t> labels;
    std::vector<std::pair<size_t, std::string>> branches; /* instruction, where to */
    std::string scope; /* before the labels of a function that is called */
    uint32_t n_calls = 0;
    size_t at; /* of the statement in the text */
};

[[noreturn]] void refuse(const parser &p, const std::string &what)
{
    auto begin = p.m->text.begin();
    size_t line = 1 + (size_t)std::count(begin, begin + (ptrdiff_t)p.at, '\n');
    emulation::broken(("PTX that is not known, at line " + std::to_string(line) + " with " +
                       p.k->name + ": " + what)
                          .c_str());
}

size_t bytes_of_type(const std::string &type)
{
    return type == "pred" ? 4 : (size_t)atoi(type.c_str() + 1) / 8;
}

operand new_register(parser *p, size_t bytes)
{
    operand o = {nullptr, p->k->register_bytes, (uint8_t)(bytes == 8 ? 8 : 4)};
    p->k->register_bytes += o.bytes * WARP;
    return o;
}

operand constant(parser *p, uint64_t value, size_t bytes)
{
    std::vector<uint64_t> cells(WARP, value);
    if (bytes != 8)
        cells.assign(WARP / 2, (value & UINT32_MAX) | value << 32);
    p->k->constants.push_back(cells);
    return {(const char *)p->k->constants.back().data(), 0, (uint8_t)(bytes == 8 ? 8 : 4)};
}

std::string trimmed(const std::string &s)
{
    size_t from = s.find_first_not_of(" \t\n\r"), to = s.find_last_not_of(" \t\n\r");
    return from == std::string::npos ? "" : s.substr(from, to - from + 1);
}

/* The brace that ends what begins at this one. Scopes within stand at the margin, too, in objects. */
size_t closing_brace(const std::string &text, size_t open)
{
    int depth = 0;
    for (size_t at = open; at != std::string::npos; at = text.find_first_of("{}", at + 1)) {
        depth += text[at] == '{' ? 1 : -1;
        if (depth == 0)
            return at;
    }
    return text.size();
}

/* What stands between commas outside of brackets. */
std::vector<std::string> listed(const std::string &s)
{
    std::vector<std::string> out;
    int depth = 0;
    std::string item;
    for (char c : s) {
        depth += (c == '{' || c == '[' || c == '(') - (c == '}' || c == ']' || c == ')');
        if (c == ',' && depth == 0) {
            out.push_back(trimmed(item));
            item.clear();
        } else {
            item += c;
        }
    }
    if (!trimmed(item).empty())
        out.push_back(trimmed(item));
    return out;
}

/* The bytes of a table, "{1, 2, ...}" behind its name. */
const std::vector<char> *table_of(module *m, const std::string &name)
{
    auto found = m->tables.find(name);
    if (found != m->tables.end())
        return &found->second;
    size_t at = m->text.find(" " + name + "[");
    size_t open = at == std::string::npos ? at : m->text.find_first_of("{;", at);
    if (open == std::string::npos || m->text[open] != '{')
        return nullptr;
    std::vector<char> bytes;
    const char *next = m->text.c_str() + open;
    while (*next != '}') {
        bytes.push_back((char)strtol(next + 1, (char **)&next, 10));
        next += strspn(next, " \n");
    }
    return &(m->tables[name] = bytes);
}

/* A number, in `value`. */
bool is_number(const std::string &s, size_t bytes, uint64_t *value)
{
    if (s.size() > 2 && s[0] == '0' && strchr("fFdD", s[1]) != nullptr) {
        *value = strtoull(s.c_str() + 2, nullptr, 16);
        if (tolower(s[1]) == 'd' && bytes == 4) {
            double wide;
            memcpy(&wide, value, sizeof(wide));
            float narrow = (float)wide;
            memcpy(value, &narrow, sizeof(narrow));
        }
        return true;
    }
    if (!isdigit((unsigned char)s[0]) && s[0] != '-')
        return false;
    *value =
        s[0] == '-' ? (uint64_t)strtoll(s.c_str(), nullptr, 0) : strtoull(s.c_str(), nullptr, 0);
    return true;
}

void declare_shared(parser *p, const std::string &s);

/* bytes: of a constant's cells. */
operand operand_of(parser *p, const std::string &s, size_t bytes)
{
    uint64_t value;
    auto found = p->registers.find(s);
    if (found != p->registers.end())
        return found->second;
    if (s == "_")
        return {};
    if (is_number(s, bytes, &value))
        return constant(p, value, bytes);
    auto parameter = p->parameters.find(s);
    if (parameter != p->parameters.end())
        return constant(p, parameter->second, 8);
    auto variable = p->shared.find(s);
    if (variable != p->shared.end())
        return constant(p, variable->second, bytes);
    if (s.compare(0, 8, "__local_") == 0)
        return constant(p, 0, 8);
    if (s[0] == '%' && (s.find('.') != std::string::npos || s == "%laneid")) {
        operand o = p->registers[s] = new_register(p, 4);
        p->k->specials.push_back({s, o});
        return o;
    }
    const std::vector<char> *table = table_of(p->m, s);
    if (table == nullptr) {
        /* Shared memory that is declared outside of the kernels: a launch's comes last. */
        size_t name = p->m->text.find(" " + s + "["), line = p->m->text.rfind('\n', name) + 1;
        std::string all = p->m->text.substr(line, p->m->text.find(';', name) - line);
        if (name == std::string::npos || all.find(".shared") == std::string::npos ||
            (!p->k->shared.empty() && p->k->shared.back().bytes == UINT32_MAX))
            refuse(*p, s);
        declare_shared(p, all);
        return operand_of(p, s, bytes);
    }
    return constant(p, (uint64_t)(uintptr_t)table->data(), 8);
}

/* "[base+offset]" */
operand address_of(parser *p, const std::string &s, space where, int64_t *offset)
{
    std::string inside = trimmed(s.substr(1, s.size() - 2));
    size_t plus = inside.find('+');
    *offset = plus == std::string::npos ? 0 : strtoll(inside.c_str() + plus + 1, nullptr, 0);
    return operand_of(p, trimmed(inside.substr(0, plus)), where == space::SHARED ? 4 : 8);
}

/* One operand or "{a, b}", to be put at `where`. Returns how many. */
unsigned put_operands(parser *p, const std::string &s, size_t bytes, operand *where)
{
    std::vector<std::string> parts =
        s[0] == '{' ? listed(s.substr(1, s.size() - 2)) : std::vector{s};
    if (parts.size() > 4)
        refuse(*p, s);
    for (size_t n = 0; n < parts.size(); n++)
        where[n] = operand_of(p, parts[n], bytes);
    return (unsigned)parts.size();
}

/* The bytes of the type that ends an operation's name; of what it reads, if there are two. */
size_t bytes_read(const std::string &opcode)
{
    if (opcode == "mov.split" || opcode == "mov.join")
        return 4;
    size_t bytes = bytes_of_type(opcode.substr(opcode.rfind('.') + 1));
    return bytes == 8 ? 8 : 4;
}

void read_memory(parser *p, instruction *i, const std::string &opcode,
                 const std::vector<std::string> &o)
{
    size_t bytes = bytes_read(opcode);
    std::string verb = opcode.substr(0, opcode.find('.'));
    if (verb == "ld" || verb == "ldmatrix") {
        put_operands(p, o.at(0), bytes, i->out);
        i->in[0] = address_of(p, o.at(1), i->where, &i->offset);
    } else if (verb == "st") {
        i->in[0] = address_of(p, o.at(0), i->where, &i->offset);
        put_operands(p, o.at(1), bytes, i->in + 1);
    } else if (verb == "atom") {
        i->out[0] = operand_of(p, o.at(0), 4);
        i->in[0] = address_of(p, o.at(1), i->where, &i->offset);
        for (size_t n = 2; n < o.size(); n++)
            i->in[n - 1] = operand_of(p, o[n], 4);
    } else if (opcode.find("shared.global") != std::string::npos) {
        i->in[0] = address_of(p, o.at(0), space::SHARED, &i->offset);
        i->in[1] = address_of(p, o.at(1), space::GLOBAL, &i->source_offset);
        i->n = (uint8_t)atoi(o.at(2).c_str());
        if (o.size() > 3 && o[3] != o[2])
            refuse(*p, "a copy that fills up");
    } else if (verb == "cvta") {
        i->out[0] = operand_of(p, o.at(0), 8);
        i->in[0] = operand_of(p, o.at(1), 8);
    } else if (verb == "cp" && !o.empty()) {
        i->in[0] = operand_of(p, o[0], 4);
    }
}

/* Everything else: what it writes, and what it reads. */
void read_operands(parser *p, instruction *i, const std::string &opcode,
                   const std::vector<std::string> &o)
{
    size_t bytes = bytes_read(opcode);
    if (opcode == "bar.warp.sync") {
        i->in[0] = operand_of(p, o.at(0), 4);
        return;
    }
    std::string written = o.at(0);
    size_t second = written.find('|');
    if (second != std::string::npos)
        i->out[1] = operand_of(p, trimmed(written.substr(second + 1)), 4);
    if (opcode == "mov.split" || opcode.compare(0, 3, "mma") == 0)
        put_operands(p, written, 4, i->out);
    else
        i->out[0] = operand_of(p, trimmed(written.substr(0, second)), bytes);
    unsigned n = 0;
    for (size_t in = 1; in < o.size(); in++) {
        /* How far to shift is one of 32 bits, whatever is shifted; a condition too; sums may be
         * wider. */
        bool word =
            in == 3 ||
            ((opcode.compare(0, 3, "shl") == 0 || opcode.compare(0, 3, "shr") == 0) && in == 2);
        size_t its = word && opcode.compare(0, 3, "fma") != 0 && opcode.compare(0, 3, "mad") != 0
                         ? 4
                         : bytes;
        if (opcode.compare(0, 8, "mad.wide") == 0 && in == 3)
            its = 8;
        n += put_operands(p, o[in], its, i->in + n);
    }
}

void add_instruction(parser *p, instruction i)
{
    auto begin = p->m->text.begin();
    static size_t known_at, known_line; /* lines are counted on from the last one */
    static const module *known;
    if (known != p->m || known_at > p->at) {
        known = p->m;
        known_at = known_line = 0;
    }
    known_line += (size_t)std::count(begin + (ptrdiff_t)known_at, begin + (ptrdiff_t)p->at, '\n');
    known_at = p->at;
    i.line = (uint32_t)known_line + 1;
    p->k->code.push_back(i);
}

void move(parser *p, operand to, operand from)
{
    instruction i = {};
    i.run = arithmetic_of(to.bytes == 8 ? "mov.b64" : "mov.b32");
    i.out[0] = to;
    i.in[0] = from;
    add_instruction(p, i);
}

void read_body(parser *p, size_t from, size_t to);

/* "(value), name, (a, b)" */
void read_call(parser *p, const std::vector<std::string> &o)
{
    size_t after = p->at;
    const std::string &text = p->m->text;
    std::string scope = p->scope;
    size_t at = text.find(".func");
    while (at != std::string::npos) {
        size_t open = text.find_first_of("{;", at), name = text.find(o.at(1), at);
        if (name < open && text[open] == '{')
            break;
        at = text.find(".func", at + 5);
    }
    if (at == std::string::npos)
        refuse(*p, "a call of " + o.at(1));
    std::string head = text.substr(at, text.find('{', at) - at);
    std::vector<std::string> names;
    for (size_t dot = head.find(".param"); dot != std::string::npos;
         dot = head.find(".param", dot + 1)) {
        std::string one = head.substr(dot, head.find_first_of(",)", dot) - dot);
        names.push_back(trimmed(one.substr(one.find(' ', 7))));
    }
    std::vector<std::string> given = listed(o.at(0).substr(1, o[0].size() - 2));
    for (const std::string &one : listed(o.at(2).substr(1, o[2].size() - 2)))
        given.push_back(one);
    auto own = p->registers;
    for (size_t n = 0; n < given.size(); n++)
        p->registers[names.at(n)] = p->registers.at(given[n]);
    p->scope = "call " + std::to_string(p->n_calls++) + " ";
    size_t open = text.find('{', at);
    read_body(p, open + 1, closing_brace(text, open));
    p->labels[p->scope + "end"] = (uint32_t)p->k->code.size();
    p->registers = own;
    p->scope = scope;
    p->at = after;
}

/* ".reg .b32 %r<9>, %x" */
void declare_registers(parser *p, const std::string &s)
{
    size_t dot = s.find('.', 4), space = s.find_first_of(" \t", dot);
    size_t bytes = bytes_of_type(s.substr(dot + 1, space - dot - 1));
    for (const std::string &one : listed(s.substr(space))) {
        size_t count = one.find('<');
        if (count == std::string::npos)
            p->registers[one] = new_register(p, bytes);
        for (int n = count == std::string::npos ? 0 : atoi(one.c_str() + count + 1); n-- > 0;)
            p->registers[one.substr(0, count) + std::to_string(n)] = new_register(p, bytes);
    }
}

/* ".shared .align 4 .b8 name[5120]": behind the one before, with bytes between them that nobody may
 * touch. */
void declare_shared(parser *p, const std::string &s)
{
    size_t align = s.find(".align"), type = s.find('.', align + 1), name = s.find(' ', type) + 1;
    uint32_t alignment = (uint32_t)atoi(s.c_str() + align + 6);
    name = s.find_first_not_of(" \t", name);
    size_t open = s.find('[', name);
    uint32_t n = open == std::string::npos ? 1 : (uint32_t)atoi(s.c_str() + open + 1);
    bool asked_for = s.compare(0, 7, ".extern") == 0;
    uint32_t first = p->k->shared_bytes == 0 ? 0 : p->k->shared_bytes + 16;
    first = (first + alignment - 1) / alignment * alignment;
    uint32_t bytes = n * (uint32_t)bytes_of_type(s.substr(type + 1, s.find(' ', type) - type - 1));
    p->shared[s.substr(name, open == std::string::npos ? open : open - name)] = first;
    p->k->shared.push_back({first, asked_for ? UINT32_MAX : bytes});
    p->k->shared_bytes = first + (asked_for ? 0 : bytes);
}

void declare(parser *p, const std::string &s)
{
    if (s.compare(0, 4, ".reg") == 0) {
        declare_registers(p, s);
    } else if (s.compare(0, 7, ".shared") == 0) {
        declare_shared(p, s);
    } else if (s.compare(0, 6, ".local") == 0) {
        p->k->local_bytes = ((uint32_t)atoi(s.c_str() + s.find('[') + 1) + 15) / 16 * 16;
    } else if (s.compare(0, 6, ".param") == 0) { /* of a call */
        std::string type = s.substr(8, s.find(' ', 8) - 8);
        p->registers[trimmed(s.substr(s.find(' ', 8)))] = new_register(p, bytes_of_type(type));
    } else if (s.compare(0, 7, ".pragma") != 0) {
        refuse(*p, s);
    }
}

/* Loads and stores of what a call passes. Returns false for others. */
bool read_passed(parser *p, const std::string &opcode, const std::vector<std::string> &o)
{
    bool loads = opcode.compare(0, 8, "ld.param") == 0;
    if (!loads && opcode.compare(0, 8, "st.param") != 0)
        return false;
    const std::string &memory = o.at(loads ? 1 : 0);
    auto found = p->registers.find(memory.substr(1, memory.find_first_of("+]") - 1));
    if (memory[1] == '%' || found == p->registers.end())
        return false;
    if (loads)
        move(p, operand_of(p, o[0], 8), found->second);
    else
        move(p, found->second, operand_of(p, o.at(1), found->second.bytes));
    return true;
}

void read_statement(parser *p, std::string s)
{
    if (s[0] == '.') {
        declare(p, s);
        return;
    }
    instruction i = {};
    if (s[0] == '@') {
        i.guarded = true;
        i.guard_is_negative = s[1] == '!';
        size_t from = i.guard_is_negative ? 2 : 1, space = s.find_first_of(" \t");
        i.guard = operand_of(p, s.substr(from, space - from), 4);
        s = trimmed(s.substr(space));
    }
    size_t space = s.find_first_of(" \t\n");
    std::string opcode = s.substr(0, space);
    std::vector<std::string> o =
        space == std::string::npos ? std::vector<std::string>() : listed(s.substr(space));
    if (opcode == "call.uni") {
        read_call(p, o);
        return;
    }
    if (read_passed(p, opcode, o))
        return;
    if (opcode == "bra" || opcode == "bra.uni" || (opcode == "ret" && !p->scope.empty())) {
        i.kind = flow::BRANCH;
        p->branches.push_back({p->k->code.size(), p->scope + (opcode == "ret" ? "end" : o.at(0))});
    } else if (opcode == "ret" || opcode == "exit") {
        i.kind = flow::END;
    } else if (opcode == "bar.sync" && o.size() == 1 && o[0] == "0") {
        i.kind = flow::BARRIER;
    } else if ((i.run = warp_wide_of(opcode)) != nullptr) {
        i.kind = flow::WARP_WIDE;
        read_operands(p, &i, opcode, o);
    } else if (opcode.compare(0, 13, "cvta.to.globa") == 0) {
        move(p, operand_of(p, o.at(0), 8), operand_of(p, o.at(1), 8));
        return;
    } else if ((i.run = memory_of(opcode, &i)) != nullptr) {
        i.kind = opcode.compare(0, 8, "ldmatrix") == 0 ? flow::WARP_WIDE : flow::PLAIN;
        read_memory(p, &i, opcode, o);
    } else {
        if (opcode.compare(0, 4, "mov.") == 0 && s.find('{') != std::string::npos) {
            bool splits = o.at(0)[0] == '{';
            i.target = (uint32_t)std::count(s.begin(), s.end(), ',');
            i.n = (uint8_t)(8 * bytes_read(opcode) / i.target);
            opcode = splits ? "mov.split" : "mov.join";
        }
        i.run = arithmetic_of(opcode);
        if (i.run == nullptr)
            refuse(*p, s);
        read_operands(p, &i, opcode, o);
    }
    add_instruction(p, i);
}

/* The braces of a scope stand alone, those of vectors in a statement. */
void read_body(parser *p, size_t from, size_t to)
{
    const std::string &text = p->m->text;
    while ((from = text.find_first_not_of(" \t\n\r{}", from)) < to) {
        p->at = from;
        if (text.compare(from, 2, "//") == 0) {
            from = text.find('\n', from);
            continue;
        }
        size_t end = text.find_first_of(text[from] == '$' ? ":" : ";", from);
        std::string s = text.substr(from, end - from);
        if (text[from] == '$')
            p->labels[p->scope + s] = (uint32_t)p->k->code.size();
        else
            read_statement(p, trimmed(s));
        from = end + 1;
    }
}

void read_parameters(parser *p, const std::string &s)
{
    for (const std::string &one : listed(s)) {
        size_t open = one.find('['), align = one.find(".align"), name = one.find_last_of(" \t") + 1;
        size_t dot = one.find('.', align == std::string::npos ? 6 : align + 1);
        size_t bytes = bytes_of_type(one.substr(dot + 1, one.find_first_of(" \t", dot) - dot - 1));
        size_t alignment = bytes;
        if (align != std::string::npos) {
            alignment = (size_t)atoi(one.c_str() + align + 6);
            bytes = (size_t)atoi(one.c_str() + open + 1);
        }
        size_t at = (p->k->all_parameter_bytes + alignment - 1) / alignment * alignment;
        p->parameters[one.substr(name, open == std::string::npos ? open : open - name)] = at;
        p->k->parameter_at.push_back(at);
        p->k->parameter_bytes.push_back(bytes);
        p->k->all_parameter_bytes = at + bytes;
    }
}
} // namespace

std::unique_ptr<kernel> parse(module *m, size_t entry)
{
    const std::string &text = m->text;
    std::unique_ptr<kernel> k(new kernel);
    parser p = {m, k.get(), {}, {}, {}, {}, {}, "", 0, entry};
    size_t name = text.find_first_not_of(' ', text.find(".entry", entry) + 6);
    size_t open = text.find('(', name), body = text.find('{', open);
    k->name = trimmed(text.substr(name, open - name));
    read_parameters(&p, text.substr(open + 1, text.find(')', open) - open - 1));
    size_t target = text.rfind(".target sm_", entry);
    k->knows_early = target != std::string::npos && atoi(text.c_str() + target + 11) >= 90;
    size_t bound = text.find(".maxntid", open);
    if (bound < body)
        k->max_threads = (uint32_t)atoi(text.c_str() + bound + 8);
    read_body(&p, body + 1, closing_brace(text, body));
    for (auto &[number, label] : p.branches) {
        auto found = p.labels.find(label);
        if (found == p.labels.end())
            refuse(p, label);
        k->code[number].target = found->second;
    }
    instruction last = {};
    last.kind = flow::END;
    add_instruction(&p, last);
    return k;
}
} // namespace ptx
