/* SPDX-License-Identifier: MIT */
/* A kernel of PTX, the portable code that nvcc makes, in the form in which it is run: a list of
 * instructions, each with the function that does it for the lanes of a warp.
 *
 * A register is 32 cells, one for each lane of a warp: of 8 bytes if it has 64 bits, else of 4.
 * Predicates are 0 or 1. A constant has the same form, so that both are read in the same way. */
#ifndef MOE_PTX_MODULE_H
#define MOE_PTX_MODULE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace ptx
{
constexpr unsigned WARP = 32;
constexpr uint32_t WHOLE_WARP = UINT32_MAX;

struct warp;
struct instruction;
typedef void (*handler)(warp &w, const instruction &i);

struct operand {
    const char *fixed; /* a constant's cells; NULL: a register */
    uint32_t at;       /* of its cells among the warp's registers, in bytes */
    uint8_t bytes;     /* of a cell */
};

enum class space : uint8_t { GENERIC, GLOBAL, SHARED, LOCAL, PARAM };

enum class flow : uint8_t {
    PLAIN,     /* each lane by itself */
    BRANCH,    /* to `target` */
    END,       /* of the thread */
    BARRIER,   /* of the block */
    WARP_WIDE, /* once all lanes of the warp are here */
};

struct instruction {
    handler run; /* of PLAIN and WARP_WIDE */
    flow kind;
    space where;
    bool guarded, guard_is_negative;
    uint8_t n; /* elements of a vector, or bytes of a copy */
    uint32_t target;
    uint32_t line;         /* in the module's text */
    int64_t offset;        /* of an address */
    int64_t source_offset; /* of a copy's other one */
    operand guard;
    operand out[4];
    operand in[10]; /* a matrix product has most */
};

/* A variable in shared memory. */
struct shared_variable {
    uint32_t first;
    uint32_t bytes; /* UINT32_MAX: as many as the launch asks for */
};

/* Registers that each warp begins with. */
struct special_register {
    std::string name;
    operand cells;
};

struct kernel {
    std::string name;
    std::vector<instruction> code;
    std::vector<size_t> parameter_bytes;
    std::vector<size_t> parameter_at;
    size_t all_parameter_bytes = 0;
    uint32_t max_threads = 1024;
    bool knows_early = false;    /* of launches: made for sm_90 or newer */
    uint32_t register_bytes = 0; /* of a warp */
    uint32_t local_bytes = 0;    /* of a thread */
    uint32_t shared_bytes = 0;   /* without what the launch asks for, which comes last */
    std::vector<shared_variable> shared;
    std::vector<special_register> specials;
    std::deque<std::vector<uint64_t>> constants;
};

/* The text of one source's code, and its tables in the device's memory, which are read when they
 * are met. */
struct module {
    std::string text;
    std::map<std::string, std::vector<char>> tables;
};

/* The function of an instruction that handles each lane by itself, or all of a warp at once, by its
 * whole name
 * ("fma.rn.f32"); NULL: it is not known. */
handler arithmetic_of(const std::string &opcode);
handler warp_wide_of(const std::string &opcode);
/* Of loads, stores and what else uses memory; sets what the name says in the instruction. */
handler memory_of(const std::string &opcode, instruction *i);
/* Ends the test when the text has something that is not known. entry: where ".entry" or ".visible"
 * stands. */
std::unique_ptr<kernel> parse(module *m, size_t entry);

/* What tests and the emulation use: adds the kernels of a text. */
void add_module(std::string text);
/* NULL: there is none of this name (as c++filt prints it). */
const kernel *find_kernel(const std::string &name);
/* Whether a table of a module has these bytes. */
bool is_table(const void *memory, size_t bytes);
/* How many kernels there are, and parses all of them. */
size_t parse_all(void);
} // namespace ptx

#endif
