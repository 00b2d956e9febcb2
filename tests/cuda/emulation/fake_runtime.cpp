// SPDX-License-Identifier: MIT
/* CUDA's runtime, as far as the device's host side uses it, on the host.
 *
 * A stream is a thread that does what it was given, in order: copies, kernels (which the emulation
 * hands over instead of running them at once), events. So what CUDA only promises to happen later
 * does happen later, and what the host side forgot to wait for goes wrong.
 *
 * Strict where CUDA is lenient: memory of an asynchronous copy must be page-locked or the device's,
 * a kernel's stream of the device that the thread has chosen, device memory of the stream's device. Device memory begins as NaNs, ends at
 * a page that nobody may touch, and is out of the host's reach: by a protection key that only the
 * streams' threads have, or, on a processor without such, for everybody while no stream works.
 *
 * A stream that captures keeps what it is given, and a graph's launch gives it all of that, as often
 * as asked. What CUDA refuses a capturing thread, or may, ends the capture: allocations, waiting,
 * events on its stream. */
#include "cuda_runtime.h"
#include "fake_blas.h"
#include "fake_runtime.h"
#include "watch.h"

#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace
{
struct moment {
    std::mutex lock;
    std::condition_variable reached;
    uint64_t n_recorded = 0;
    uint64_t n_done = 0;
    uint64_t done_ns = 0;
};

struct block {
    size_t bytes;
    size_t body;   /* of the mapping: what can be used */
    size_t mapped; /* and the page at its end */
    void *mapping;
    int device;
};

std::mutex machine_lock;
fake_machine machine = {1, 9, 0, 13000, (size_t)1 << 30, nullptr, 0, cudaSuccess, false, false, 0, 2, 0};
uint32_t n_matches;
cudaError_t sticky;
fake_usage usage;
std::map<uintptr_t, block> device_blocks;
std::map<uintptr_t, block> host_blocks; /* allocated or registered */
/* Of each device's memory, which only its own streams can reach; -2: not asked for, -1: none. */
const int max_keys = 4;
int memory_keys[max_keys] = {-2, -2, -2, -2};

thread_local int chosen_device;
thread_local cudaError_t last_error;

uint64_t now_ns()
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Under the lock. */
bool fails_now(const char *call)
{
    if (machine.fail_call == nullptr || strcmp(machine.fail_call, call) != 0)
        return false;
    uint32_t n = n_matches++;
    if (n < machine.fail_after || (n > machine.fail_after && !machine.fail_each))
        return false;
    usage.n_failures++;
    if (machine.fail_for_good)
        sticky = machine.fail_code;
    return true;
}

cudaError_t failed(cudaError_t code)
{
    last_error = code;
    return code;
}

/* Every call begins with it. */
cudaError_t enter(const char *call)
{
    std::lock_guard<std::mutex> guard(machine_lock);
    if (sticky != cudaSuccess)
        return failed(sticky);
    if (machine.driver_version == 0 || machine.driver_version < 13000)
        return failed(cudaErrorInsufficientDriver);
    if (machine.n_devices == 0)
        return failed(cudaErrorNoDevice);
    if (fails_now(call))
        return failed(machine.fail_code);
    return cudaSuccess;
}

bool contains(const std::map<uintptr_t, block> &blocks, const void *memory, size_t bytes)
{
    auto next = blocks.upper_bound((uintptr_t)memory);
    if (next == blocks.begin())
        return false;
    --next;
    return (uintptr_t)memory + bytes <= next->first + next->second.bytes;
}

/* The device that has this memory. Under the lock. */
int device_at(const void *memory)
{
    return std::prev(device_blocks.upper_bound((uintptr_t)memory))->second.device;
}

bool can_reach(const void *memory, size_t bytes)
{
    std::lock_guard<std::mutex> guard(machine_lock);
    return contains(device_blocks, memory, bytes) || contains(host_blocks, memory, bytes);
}

uint32_t n_working; /* streams */

/* Under the lock. */
int key_of(int device)
{
    int &key = memory_keys[device % max_keys];
    if (key == -2)
        key = pkey_alloc(0, PKEY_DISABLE_ACCESS);
    return key;
}

/* Under the lock. Without a key memory is there for all threads or for none. */
void protect(const std::pair<const uintptr_t, block> &b)
{
    if (key_of(b.second.device) >= 0)
        (void)pkey_mprotect(b.second.mapping, b.second.body, PROT_READ | PROT_WRITE,
                            key_of(b.second.device));
    else
        (void)mprotect(b.second.mapping, b.second.body,
                       n_working > 0 ? PROT_READ | PROT_WRITE : PROT_NONE);
}

/* Around whatever a stream does. */
void begin_work()
{
    std::lock_guard<std::mutex> guard(machine_lock);
    if (n_working++ == 0 && key_of(0) < 0)
        for (const auto &b : device_blocks)
            protect(b);
}

void end_work()
{
    std::lock_guard<std::mutex> guard(machine_lock);
    if (--n_working == 0 && key_of(0) < 0)
        for (const auto &b : device_blocks)
            protect(b);
}

void let_reach_device_memory(int device)
{
    std::lock_guard<std::mutex> guard(machine_lock);
    if (key_of(device) >= 0)
        pkey_set(key_of(device), 0);
}
} // namespace

struct CUevent_st {
    std::shared_ptr<moment> when = std::make_shared<moment>();
    bool timed;
    int device;
};

typedef std::vector<std::function<void()>> recording;

struct CUgraph_st {
    std::shared_ptr<recording> nodes;
};

struct CUgraphExec_st {
    std::shared_ptr<recording> nodes;
};

struct CUstream_st {
    int device;
    std::shared_ptr<recording> captured; /* null: it does what it is given */
    bool capture_is_valid = false;
    uint32_t seed;
    std::mutex lock;
    std::condition_variable given;
    std::condition_variable idle;
    std::deque<std::function<void()>> tasks;
    bool busy = false;
    bool stop = false;
    std::thread thread;

    void put(std::function<void()> task)
    {
        std::lock_guard<std::mutex> guard(lock);
        if (captured != nullptr) {
            captured->push_back(std::move(task));
            return;
        }
        tasks.push_back(std::move(task));
        given.notify_one();
    }

    void nap()
    {
        uint32_t most;
        {
            std::lock_guard<std::mutex> guard(machine_lock);
            most = machine.nap_us;
        }
        seed = seed * 1664525u + 1013904223u;
        if (most > 0 && seed >> 30 == 0)
            usleep((seed >> 8) % most);
    }

    void work()
    {
        let_reach_device_memory(device);
        std::unique_lock<std::mutex> guard(lock);
        bool works = false; /* from its first task until it has none left */
        for (;;) {
            if (tasks.empty()) {
                if (works)
                    end_work();
                works = false;
                idle.notify_all();
                if (stop)
                    return;
                given.wait(guard);
                continue;
            }
            std::function<void()> task = std::move(tasks.front());
            tasks.pop_front();
            busy = true;
            guard.unlock();
            if (!works)
                begin_work();
            works = true;
            nap();
            task();
            guard.lock();
            busy = false;
        }
    }

    void drain()
    {
        std::unique_lock<std::mutex> guard(lock);
        idle.wait(guard, [this] { return tasks.empty() && !busy; });
    }
};

namespace
{
std::map<cudaStream_t, int> streams;
thread_local cudaStream_t capturing; /* what this thread captures */

/* Calls that a thread must not make while it captures begin with it. */
cudaError_t enter_outside_capture(const char *call)
{
    if (capturing != nullptr) {
        capturing->capture_is_valid = false;
        return failed(cudaErrorStreamCaptureUnsupported);
    }
    return enter(call);
}

bool has_failed()
{
    std::lock_guard<std::mutex> guard(machine_lock);
    return sticky != cudaSuccess;
}

void run_kernel(const std::function<void()> &kernel)
{
    uint32_t longer_us;
    {
        std::lock_guard<std::mutex> guard(machine_lock);
        if (fails_now("fault"))
            sticky = machine.fail_code;
        if (sticky != cudaSuccess)
            return;
        usage.n_kernels++;
        longer_us = machine.kernel_us;
    }
    if (longer_us > 0)
        usleep(longer_us);
    /* The emulation has one block at a time. */
    static std::mutex processor;
    std::lock_guard<std::mutex> guard(processor);
    begin_work();
    kernel();
    end_work();
}

void defer_kernel(cudaStream_t stream, std::function<void()> kernel)
{
    cudaError_t code = enter("kernel");
    if (code == cudaSuccess && capturing != nullptr) {
        code = enter("captured kernel");
        capturing->capture_is_valid &= code == cudaSuccess;
    }
    if (code != cudaSuccess)
        return;
    if (stream->device != chosen_device) {
        (void)failed(cudaErrorInvalidResourceHandle);
        return;
    }
    if (capturing == nullptr) {
        std::lock_guard<std::mutex> guard(machine_lock);
        usage.n_launches++;
    }
    stream->put([kernel] { run_kernel(kernel); });
}

void drain_device(int device)
{
    std::map<cudaStream_t, int> all;
    {
        std::lock_guard<std::mutex> guard(machine_lock);
        all = streams;
    }
    for (auto &s : all)
        if (s.second == device)
            s.first->drain();
}
} // namespace

cudaError_t emulation::enter_call(const char *call)
{
    return enter(call);
}

cudaError_t emulation::queue_product(cudaStream_t stream, std::function<void()> product)
{
    cudaError_t code = enter("cublasSgemm");
    if (code != cudaSuccess)
        return code;
    {
        std::lock_guard<std::mutex> guard(machine_lock);
        usage.n_products++;
    }
    stream->put([product] {
        if (has_failed())
            return;
        begin_work();
        product();
        end_work();
    });
    return cudaSuccess;
}

void emulation::count_blas_handles(int change)
{
    std::lock_guard<std::mutex> guard(machine_lock);
    usage.blas_handles += (uint64_t)(int64_t)change;
}

/* ---- Control ---- */

void fake_machine_init(fake_machine *out)
{
    *out = {1, 9, 0, 13000, (size_t)1 << 30, nullptr, 0, cudaSuccess, false, false, 0, 2};
}

void fake_machine_set(const fake_machine *wanted)
{
    std::lock_guard<std::mutex> guard(machine_lock);
    machine = *wanted;
    n_matches = 0;
    sticky = cudaSuccess;
    usage.n_launches = usage.n_kernels = usage.n_copies = usage.n_waits = 0;
    usage.n_products = usage.n_graphs = usage.n_failures = usage.n_allocations = 0;
}

void fake_get_usage(fake_usage *out)
{
    std::lock_guard<std::mutex> guard(machine_lock);
    *out = usage;
    out->device_blocks = device_blocks.size();
    out->host_blocks = host_blocks.size();
    out->streams = streams.size();
    out->n_early = emulation::n_early_kernels;
}

/* ---- Errors and devices ---- */

cudaError_t cudaGetLastError(void)
{
    cudaError_t code = last_error;
    std::lock_guard<std::mutex> guard(machine_lock);
    last_error = sticky;
    return code;
}

const char *cudaGetErrorString(cudaError_t code)
{
    switch (code) {
    case cudaSuccess:
        return "no error";
    case cudaErrorMemoryAllocation:
        return "out of memory";
    case cudaErrorInsufficientDriver:
        return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice:
        return "no CUDA-capable device is detected";
    case cudaErrorIllegalAddress:
        return "an illegal memory access was encountered";
    case cudaErrorLaunchFailure:
        return "unspecified launch failure";
    default:
        return "another failure";
    }
}

const char *cudaGetErrorName(cudaError_t code)
{
    return code == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation"
           : code == cudaErrorIllegalAddress ? "cudaErrorIllegalAddress"
           : code == cudaErrorLaunchFailure  ? "cudaErrorLaunchFailure"
                                             : "cudaErrorUnknown";
}

cudaError_t cudaDriverGetVersion(int *version)
{
    std::lock_guard<std::mutex> guard(machine_lock);
    *version = machine.driver_version;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = 13000;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 0;
    cudaError_t code = enter(__func__);
    if (code == cudaSuccess)
        *count = machine.n_devices;
    return code;
}

cudaError_t cudaSetDevice(int device)
{
    cudaError_t code = enter(__func__);
    if (code != cudaSuccess)
        return code;
    if (device < 0 || device >= machine.n_devices)
        return failed(cudaErrorInvalidDevice);
    chosen_device = device;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device)
{
    cudaError_t code = enter(__func__);
    memset(properties, 0, sizeof *properties);
    if (code == cudaSuccess) {
        std::string name = "Emulated GPU " + std::to_string(device);
        memcpy(properties->name, name.c_str(), name.size() + 1);
        properties->totalGlobalMem = machine.memory_bytes;
    }
    return code;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int)
{
    *value = attribute == cudaDevAttrComputeCapabilityMajor   ? machine.major
             : attribute == cudaDevAttrComputeCapabilityMinor ? machine.minor
                                                              : machine.n_multiprocessors;
    return enter(__func__);
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int length, int device)
{
    cudaError_t code = enter(__func__);
    if (code == cudaSuccess)
        snprintf(id, (size_t)length, "FFFF:0%d:00.0", device);
    return code;
}

/* ---- Memory ---- */

static uint64_t rounded(size_t bytes)
{
    const size_t whole = (size_t)2 << 20;
    return bytes <= whole / 2 ? bytes : (bytes + whole - 1) / whole * whole;
}

cudaError_t cudaMalloc(void **memory, size_t bytes)
{
    *memory = nullptr;
    cudaError_t code = enter_outside_capture(__func__);
    if (code != cudaSuccess)
        return code;
    std::lock_guard<std::mutex> guard(machine_lock);
    if (bytes > machine.memory_bytes - usage.bytes_of[chosen_device % max_keys])
        return failed(cudaErrorMemoryAllocation);
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t size = (bytes + 255) / 256 * 256;
    size_t body = (size + page - 1) / page * page;
    char *mapping = (char *)mmap(nullptr, body + page, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == (char *)MAP_FAILED)
        return failed(cudaErrorMemoryAllocation);
    memset(mapping, 0xff, body);
    (void)mprotect(mapping + body, page, PROT_NONE);
    *memory = mapping + body - size;
    block b = {bytes, body, body + page, mapping, chosen_device};
    protect(*device_blocks.emplace((uintptr_t)*memory, b).first);
    usage.device_bytes += bytes;
    usage.bytes_of[chosen_device % max_keys] += bytes;
    usage.device_rounded_bytes += rounded(bytes);
    usage.n_allocations++;
    return cudaSuccess;
}

cudaError_t cudaFree(void *memory)
{
    if (memory == nullptr)
        return cudaSuccess;
    cudaError_t code = enter_outside_capture(__func__);
    drain_device(chosen_device);
    std::lock_guard<std::mutex> guard(machine_lock);
    auto found = device_blocks.find((uintptr_t)memory);
    if (found == device_blocks.end())
        return failed(cudaErrorInvalidValue);
    munmap(found->second.mapping, found->second.mapped);
    usage.device_bytes -= found->second.bytes;
    usage.bytes_of[found->second.device % max_keys] -= found->second.bytes;
    usage.device_rounded_bytes -= rounded(found->second.bytes);
    device_blocks.erase(found);
    return code;
}

cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned)
{
    *memory = nullptr;
    cudaError_t code = enter_outside_capture(__func__);
    if (code != cudaSuccess)
        return code;
    std::lock_guard<std::mutex> guard(machine_lock);
    *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    host_blocks[(uintptr_t)*memory] = {bytes, 0, 0, *memory, 0};
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *memory)
{
    cudaError_t code = enter_outside_capture(__func__);
    std::lock_guard<std::mutex> guard(machine_lock);
    if (host_blocks.erase((uintptr_t)memory) == 0)
        return failed(cudaErrorInvalidValue);
    free(memory);
    return code;
}

cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned)
{
    cudaError_t code = enter_outside_capture(__func__);
    if (code != cudaSuccess)
        return code;
    std::lock_guard<std::mutex> guard(machine_lock);
    host_blocks[(uintptr_t)memory] = {bytes, 0, 0, nullptr, 0};
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *memory)
{
    cudaError_t code = enter(__func__);
    std::lock_guard<std::mutex> guard(machine_lock);
    return host_blocks.erase((uintptr_t)memory) == 0 ? failed(cudaErrorInvalidValue) : code;
}

cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned)
{
    cudaError_t code = enter(__func__);
    std::lock_guard<std::mutex> guard(machine_lock);
    *device = contains(host_blocks, host, 1) ? host : nullptr;
    return *device == nullptr ? failed(cudaErrorInvalidValue) : code;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    cudaError_t code = enter_outside_capture(__func__);
    std::lock_guard<std::mutex> guard(machine_lock);
    *total = machine.memory_bytes;
    *free_bytes = machine.memory_bytes - usage.bytes_of[chosen_device % max_keys];
    return code;
}

/* How much longer a copy takes. */
static uint32_t extra_copy_us(size_t bytes)
{
    std::lock_guard<std::mutex> guard(machine_lock);
    if (bytes < (1u << 20) || machine.n_slow_copies == 0)
        return 0;
    machine.n_slow_copies--;
    return machine.slow_copy_us;
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    cudaError_t code = enter(__func__);
    if (code != cudaSuccess)
        return code;
    {
        std::lock_guard<std::mutex> guard(machine_lock);
        const auto &from = kind == cudaMemcpyHostToDevice ? host_blocks : device_blocks;
        const auto &to = kind == cudaMemcpyDeviceToHost ? host_blocks : device_blocks;
        if (bytes > 0 && (!contains(from, src, bytes) || !contains(to, dst, bytes)))
            return failed(cudaErrorInvalidValue);
        /* CUDA may allow it; the device does not rely on that. */
        const void *there = kind == cudaMemcpyHostToDevice ? dst : src;
        if (bytes > 0 && device_at(there) != stream->device)
            return failed(cudaErrorInvalidValue);
        usage.n_copies++;
    }
    stream->put([=] {
        if (has_failed())
            return;
        usleep(extra_copy_us(bytes));
        begin_work();
        memcpy(dst, src, bytes);
        end_work();
    });
    return cudaSuccess;
}

/* ---- Streams and events ---- */

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned, int priority)
{
    *stream = nullptr;
    cudaError_t code = enter(__func__);
    if (code != cudaSuccess)
        return code;
    cudaStream_t s = new CUstream_st;
    s->device = chosen_device;
    s->seed = (uint32_t)(priority + 77);
    {
        std::lock_guard<std::mutex> guard(machine_lock);
        (void)key_of(s->device);
        streams[s] = s->device;
        emulation::defer = defer_kernel;
        emulation::can_reach = can_reach;
    }
    s->thread = std::thread([s] { s->work(); });
    *stream = s;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    cudaError_t code = enter(__func__);
    {
        std::lock_guard<std::mutex> guard(stream->lock);
        stream->stop = true;
        stream->given.notify_one();
    }
    stream->thread.join();
    {
        std::lock_guard<std::mutex> guard(machine_lock);
        streams.erase(stream);
    }
    delete stream;
    return code;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    cudaError_t code = enter_outside_capture(__func__);
    if (code != cudaSuccess)
        return code;
    stream->drain();
    std::lock_guard<std::mutex> guard(machine_lock);
    usage.n_waits++;
    return sticky == cudaSuccess ? cudaSuccess : failed(sticky);
}

static void await(moment &when, uint64_t n)
{
    std::unique_lock<std::mutex> guard(when.lock);
    when.reached.wait(guard, [&] { return when.n_done >= n; });
}

static uint64_t recorded(moment &when)
{
    std::lock_guard<std::mutex> guard(when.lock);
    return when.n_recorded;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned)
{
    cudaError_t code = enter_outside_capture(__func__);
    if (code != cudaSuccess)
        return code;
    std::shared_ptr<moment> when = event->when;
    uint64_t n = recorded(*when);
    stream->put([when, n] { await(*when, n); });
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    *event = nullptr;
    cudaError_t code = enter(__func__);
    if (code != cudaSuccess)
        return code;
    *event = new CUevent_st;
    (*event)->timed = (flags & cudaEventDisableTiming) == 0;
    (*event)->device = chosen_device;
    std::lock_guard<std::mutex> guard(machine_lock);
    usage.events++;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    cudaError_t code = enter(__func__);
    delete event;
    std::lock_guard<std::mutex> guard(machine_lock);
    usage.events--;
    return code;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    cudaError_t code = enter_outside_capture(__func__);
    if (code != cudaSuccess)
        return code;
    if (event->device != stream->device)
        return failed(cudaErrorInvalidResourceHandle);
    std::shared_ptr<moment> when = event->when;
    uint64_t n;
    {
        std::lock_guard<std::mutex> guard(when->lock);
        n = ++when->n_recorded;
    }
    stream->put([when, n] {
        std::lock_guard<std::mutex> guard(when->lock);
        when->n_done = n;
        when->done_ns = now_ns();
        when->reached.notify_all();
    });
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    cudaError_t code = enter_outside_capture(__func__);
    if (code != cudaSuccess)
        return code;
    await(*event->when, recorded(*event->when));
    std::lock_guard<std::mutex> guard(machine_lock);
    return sticky == cudaSuccess ? cudaSuccess : failed(sticky);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end)
{
    cudaError_t code = enter(__func__);
    if (!begin->timed || !end->timed)
        return failed(cudaErrorInvalidResourceHandle);
    uint64_t done_ns[2];
    cudaEvent_t events[] = {begin, end};
    for (int i = 0; i < 2; i++) {
        std::lock_guard<std::mutex> guard(events[i]->when->lock);
        if (events[i]->when->n_done < events[i]->when->n_recorded)
            return failed(cudaErrorNotReady);
        done_ns[i] = events[i]->when->done_ns;
    }
    *ms = (float)((double)(done_ns[1] - done_ns[0]) * 1e-6);
    return code;
}

/* ---- Graphs ---- */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode)
{
    cudaError_t code = enter_outside_capture(__func__);
    if (code != cudaSuccess)
        return code;
    capturing = stream;
    std::lock_guard<std::mutex> guard(stream->lock);
    stream->captured = std::make_shared<recording>();
    stream->capture_is_valid = true;
    return cudaSuccess;
}

/* Ends the capture in any case. */
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    *graph = nullptr;
    cudaError_t code = enter(__func__);
    if (capturing != stream)
        return failed(cudaErrorStreamCaptureUnmatched);
    capturing = nullptr;
    std::lock_guard<std::mutex> guard(stream->lock);
    std::shared_ptr<recording> nodes = std::move(stream->captured);
    stream->captured = nullptr;
    if (code != cudaSuccess)
        return code;
    if (!stream->capture_is_valid)
        return failed(cudaErrorStreamCaptureInvalidated);
    *graph = new CUgraph_st{nodes};
    std::lock_guard<std::mutex> machine_guard(machine_lock);
    usage.graphs++;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long)
{
    cudaError_t code = enter_outside_capture(__func__);
    if (code != cudaSuccess)
        return code;
    *exec = new CUgraphExec_st{graph->nodes};
    std::lock_guard<std::mutex> guard(machine_lock);
    usage.graphs++;
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    cudaError_t code = enter_outside_capture(__func__);
    if (code != cudaSuccess)
        return code;
    {
        std::lock_guard<std::mutex> guard(machine_lock);
        usage.n_graphs++;
    }
    for (const auto &node : *exec->nodes)
        stream->put(node);
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    cudaError_t code = enter(__func__);
    delete exec;
    std::lock_guard<std::mutex> guard(machine_lock);
    usage.graphs--;
    return code;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    cudaError_t code = enter(__func__);
    delete graph;
    std::lock_guard<std::mutex> guard(machine_lock);
    usage.graphs--;
    return code;
}
