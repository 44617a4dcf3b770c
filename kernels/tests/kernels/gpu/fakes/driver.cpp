// A CUDA driver that is none, for tests: memory is the host's, and a stream does nothing before somebody waits for it, so that
// whoever touches memory too early, or forgets to wait, gets wrong results. It is strict where the real one is: contexts have
// to be current, and copies to the host's memory have to be to pinned memory.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>
#include <sys/mman.h>

namespace {
typedef unsigned long long u64;
enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_IMAGE = 200,
       INVALID_CONTEXT = 201, NO_BINARY = 209, INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600, ILLEGAL_ADDRESS = 700 };

struct Marker { bool done = false; double milliseconds = 0; };
struct Stream { std::deque<std::function<void()>> work; };
struct Event { std::shared_ptr<Marker> marker; Stream *stream = nullptr; bool timed = true; };
struct Function { std::string name; int most_threads; int dynamic = 48 << 10; };
struct Module { std::map<std::string, Function *> functions; };

// What processes that no test calls into are told: FAKE_CUDA_DEVICES of the host, of which CUDA_VISIBLE_DEVICES are shown, and the
// time of a kernel, FAKE_KERNEL_MS. Where that is set kernels that are not imitated leave zeros: memory is made of them.
long long told(const char *name, long long otherwise) { const char *text = getenv(name); return text ? atoll(text) : otherwise; }
const double kernel_milliseconds = getenv("FAKE_KERNEL_MS") ? atof(getenv("FAKE_KERNEL_MS")) : 0;
std::vector<int> shown() {
    std::vector<int> all;
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    for (int i = 0; !list && i < told("FAKE_CUDA_DEVICES", 1); i++) all.push_back(i);
    for (; list && *list; list += strspn(list, ",")) all.push_back(strtol(list, const_cast<char **>(&list), 10));
    return all;
}

std::recursive_mutex lock;
std::map<std::string, long long> settings = {{"version", told("FAKE_CUDA_VERSION", 13000)}, {"devices", shown().size()}, {"major", 9},
    {"minor", 0}, {"memory", 80LL << 30}, {"used", 1LL << 30}};
std::map<std::string, int> failing;
std::map<u64, size_t> device_memory, host_memory;
std::set<void *> streams, events, modules;
std::string log_text;
double clock_milliseconds = 0;
int sticky = OK, contexts = 0;
thread_local void *current = nullptr;
char the_context;

bool inside(const std::map<u64, size_t> &memory, u64 at, size_t bytes) {
    auto next = memory.upper_bound(at);
    if (next == memory.begin()) return false;
    --next;
    return at + bytes <= next->first + next->second;
}

// One piece of a stream's work. After a fault nothing is done any more.
void step(Stream *stream) {
    auto work = std::move(stream->work.front());
    stream->work.pop_front();
    work();
}
void finish(Stream *stream) { while (!stream->work.empty()) step(stream); }
void until(Stream *stream, const Marker &marker) { while (!marker.done && !stream->work.empty()) step(stream); }

void push(Stream *stream, double cost, std::function<void()> work) {
    stream->work.push_back([=] {
        if (sticky == OK) work();
        clock_milliseconds += cost;
    });
}

int enter(const char *call, bool context = true) {
    auto found = failing.find(call);
    if (found != failing.end()) return found->second;
    if (sticky != OK) return sticky;
    return context && current != &the_context ? INVALID_CONTEXT : OK;
}

// A copy whose both sides have to be there when it runs.
int copy(const char *call, Stream *stream, u64 to, u64 from, size_t bytes, bool to_host, bool from_host) {
    if (int code = enter(call)) return code;
    if (!streams.count(stream) || bytes == 0) return INVALID_HANDLE;
    auto good = [=] {
        return inside(to_host ? host_memory : device_memory, to, bytes)
            && inside(from_host ? host_memory : device_memory, from, bytes);
    };
    if (!good()) return INVALID_VALUE;
    push(stream, 0.25, [=] {
        if (good()) memcpy(reinterpret_cast<void *>(to), reinterpret_cast<void *>(from), bytes);
        else sticky = ILLEGAL_ADDRESS;
    });
    return OK;
}
u64 address(const void *p) { return reinterpret_cast<u64>(p); }
} // namespace

// Functions that need a context, and those that do not.
#define ENTER_WITH(context)                            \
    std::lock_guard<std::recursive_mutex> guard(lock); \
    if (int code = enter(__func__, context)) return code
#define ENTER() ENTER_WITH(true)
#define ENTER_ANYHOW() ENTER_WITH(false)

extern "C" {
// For the tests.
void fake_set(const char *name, long long value) { settings[name] = value; }
// From now on this function fails so; with 0 it works again.
void fake_fail(const char *call, int code) {
    std::lock_guard<std::recursive_mutex> guard(lock);
    if (code) failing[call] = code;
    else failing.erase(call);
}
// What was started, a line each.
const char *fake_log() { return log_text.c_str(); }
// What was made and not given back.
long long fake_live() {
    return device_memory.size() + host_memory.size() + streams.size() + events.size() + modules.size() + contexts;
}
long long fake_pending(void *stream) { return static_cast<Stream *>(stream)->work.size(); }
// Work of other libraries.
int fake_enqueue(void *stream, double cost, void (*work)(void *), void *argument) {
    std::lock_guard<std::recursive_mutex> guard(lock);
    if (!streams.count(stream)) return 1;
    push(static_cast<Stream *>(stream), cost, [=] { work(argument); });
    return 0;
}

int cuInit(unsigned) { ENTER_ANYHOW(); return OK; }
int cuDriverGetVersion(int *version) { ENTER_ANYHOW(); *version = settings["version"]; return OK; }
int cuGetErrorName(int code, const char **text) {
    static const std::map<int, const char *> names = {{2, "CUDA_ERROR_OUT_OF_MEMORY"}, {100, "CUDA_ERROR_NO_DEVICE"},
        {201, "CUDA_ERROR_INVALID_CONTEXT"}, {209, "CUDA_ERROR_NO_BINARY_FOR_GPU"}, {600, "CUDA_ERROR_NOT_READY"},
        {700, "CUDA_ERROR_ILLEGAL_ADDRESS"}};
    auto found = names.find(code);
    *text = found == names.end() ? nullptr : found->second;
    return *text ? OK : INVALID_VALUE;
}
int cuGetErrorString(int code, const char **text) {
    int known = cuGetErrorName(code, text);
    if (known == OK) *text = "words of the driver";
    return known;
}
int cuDeviceGetCount(int *count) { ENTER_ANYHOW(); *count = settings["devices"]; return OK; }
int cuDeviceGet(int *device, int ordinal) {
    ENTER_ANYHOW();
    auto all = shown();
    *device = (size_t(ordinal) < all.size() ? all[ordinal] : ordinal) + 10;
    return ordinal < settings["devices"] ? OK : INVALID_DEVICE;
}
int cuDeviceGetName(char *name, int bytes, int device) {
    ENTER_ANYHOW();
    strncpy(name, device == 10 || getenv("FAKE_CUDA_DEVICES") ? "Fake H100" : "Another", bytes);
    return OK;
}
int cuDeviceGetAttribute(int *value, int attribute, int) {
    ENTER_ANYHOW();
    switch (attribute) {
    case 16: *value = 132; return OK;
    case 75: *value = settings["major"]; return OK;
    case 76: *value = settings["minor"]; return OK;
    case 97: *value = 232448; return OK;
    default: return INVALID_VALUE;
    }
}
int cuDeviceTotalMem_v2(size_t *bytes, int) { ENTER_ANYHOW(); *bytes = settings["memory"]; return OK; }
int cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
    ENTER_ANYHOW();
    for (int i = 0; i < 16; i++) uuid[i] = 16 * i + device;
    return OK;
}
int cuDeviceGetPCIBusId(char *text, int bytes, int device) {
    ENTER_ANYHOW();
    snprintf(text, bytes, "0000:%02X:00.0", device);
    return OK;
}
int cuDevicePrimaryCtxRetain(void **context, int) { ENTER_ANYHOW(); *context = &the_context; contexts++; return OK; }
int cuDevicePrimaryCtxRelease_v2(int) {
    std::lock_guard<std::recursive_mutex> guard(lock);
    contexts--;
    return OK;
}
int cuCtxSetCurrent(void *context) { ENTER_ANYHOW(); current = context; return OK; }
int cuCtxSynchronize() {
    ENTER();
    for (void *stream : streams) finish(static_cast<Stream *>(stream));
    return sticky;
}
int cuStreamCreate(void **stream, unsigned flags) {
    ENTER();
    if (flags != 1) return INVALID_VALUE; // streams that wait for the default one are not wanted
    streams.insert(*stream = new Stream);
    return OK;
}
int cuStreamCreateWithPriority(void **stream, unsigned flags, int) { return cuStreamCreate(stream, flags); }
int cuCtxGetStreamPriorityRange(int *least, int *greatest) { ENTER(); *least = 0; *greatest = -5; return OK; }
int cuStreamDestroy_v2(void *stream) {
    ENTER();
    finish(static_cast<Stream *>(stream));
    streams.erase(stream);
    return OK;
}
int cuStreamSynchronize(void *stream) {
    ENTER();
    if (stream) finish(static_cast<Stream *>(stream)); // the default one never has work
    return sticky;
}
// One piece of work is done between two questions.
int cuStreamQuery(void *stream) {
    ENTER();
    auto *asked = static_cast<Stream *>(stream);
    if (asked->work.empty()) return OK;
    step(asked);
    return NOT_READY;
}
int cuStreamWaitEvent(void *stream, void *event, unsigned) {
    ENTER();
    auto *other = static_cast<Event *>(event);
    auto marker = other->marker;
    Stream *of = other->stream;
    if (marker) push(static_cast<Stream *>(stream), 0, [=] { until(of, *marker); });
    return OK;
}
int cuEventCreate(void **event, unsigned flags) {
    ENTER();
    auto *made = new Event;
    made->timed = !(flags & 2);
    events.insert(*event = made);
    return OK;
}
int cuEventDestroy_v2(void *event) { ENTER(); return events.erase(event) ? OK : INVALID_HANDLE; }
int cuEventRecord(void *event, void *stream) {
    ENTER();
    auto *marked = static_cast<Event *>(event);
    auto marker = std::make_shared<Marker>();
    marked->marker = marker;
    marked->stream = static_cast<Stream *>(stream);
    marked->stream->work.push_back([=] { marker->done = true; marker->milliseconds = clock_milliseconds; });
    return OK;
}
// One piece of work is done between two questions.
int cuEventQuery(void *event) {
    ENTER();
    auto *asked = static_cast<Event *>(event);
    if (!asked->marker || asked->marker->done) return OK;
    step(asked->stream);
    return NOT_READY;
}
int cuEventSynchronize(void *event) {
    ENTER();
    auto *asked = static_cast<Event *>(event);
    if (asked->marker) until(asked->stream, *asked->marker);
    return sticky;
}
int cuEventElapsedTime(float *milliseconds, void *from, void *to) {
    ENTER();
    auto *a = static_cast<Event *>(from), *b = static_cast<Event *>(to);
    if (!a->timed || !b->timed || !a->marker || !b->marker) return INVALID_HANDLE;
    if (!a->marker->done || !b->marker->done) return NOT_READY;
    *milliseconds = b->marker->milliseconds - a->marker->milliseconds;
    return OK;
}
int cuMemGetInfo_v2(size_t *free, size_t *total) {
    ENTER();
    *total = settings["memory"];
    *free = *total - settings["used"];
    for (auto &run : device_memory) *free -= run.second;
    return OK;
}
int cuMemAlloc_v2(u64 *at, size_t bytes) {
    ENTER();
    size_t free, total;
    cuMemGetInfo_v2(&free, &total);
    if (bytes > free) return OUT_OF_MEMORY;
    // Pages that nobody touches take nothing: a device has more memory than the machine that imitates it.
    void *made = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (made == MAP_FAILED) return OUT_OF_MEMORY;
    if (!kernel_milliseconds) memset(made, 0xa5, bytes < (64 << 20) ? bytes : 64 << 20);
    device_memory[*at = address(made)] = bytes;
    return OK;
}
int cuMemFree_v2(u64 at) {
    ENTER();
    auto found = device_memory.find(at);
    if (found == device_memory.end()) return INVALID_VALUE;
    munmap(reinterpret_cast<void *>(at), found->second);
    device_memory.erase(found);
    return OK;
}
int cuMemHostAlloc(void **at, size_t bytes, unsigned) {
    ENTER();
    // As the real one's: no multiple of a page.
    *at = static_cast<char *>(aligned_alloc(4096, (bytes + 512 + 4095) / 4096 * 4096)) + 512;
    memset(*at, 0x5a, bytes);
    host_memory[address(*at)] = bytes;
    return OK;
}
int cuMemFreeHost(void *at) {
    ENTER();
    if (!host_memory.erase(address(at))) return INVALID_VALUE;
    free(static_cast<char *>(at) - 512);
    return OK;
}
int cuMemcpyHtoDAsync_v2(u64 to, const void *from, size_t bytes, void *stream) {
    ENTER();
    return copy(__func__, static_cast<Stream *>(stream), to, address(from), bytes, false, true);
}
int cuMemcpyDtoHAsync_v2(void *to, u64 from, size_t bytes, void *stream) {
    ENTER();
    return copy(__func__, static_cast<Stream *>(stream), address(to), from, bytes, true, false);
}
int cuMemcpyDtoDAsync_v2(u64 to, u64 from, size_t bytes, void *stream) {
    ENTER();
    return copy(__func__, static_cast<Stream *>(stream), to, from, bytes, false, false);
}
// Copies of the default stream, which other streams do not wait for: what these have not done is not there.
int cuMemcpyHtoD_v2(u64 to, const void *from, size_t bytes) {
    ENTER();
    if (!inside(device_memory, to, bytes)) return INVALID_VALUE;
    memcpy(reinterpret_cast<void *>(to), from, bytes);
    return OK;
}
int cuMemcpyDtoH_v2(void *to, u64 from, size_t bytes) {
    ENTER();
    if (!inside(device_memory, from, bytes)) return INVALID_VALUE;
    memcpy(to, reinterpret_cast<void *>(from), bytes);
    return OK;
}
int cuMemsetD8Async(u64 to, unsigned char value, size_t bytes, void *stream) {
    ENTER();
    if (bytes == 0 || !inside(device_memory, to, bytes)) return INVALID_VALUE;
    push(static_cast<Stream *>(stream), 0.25, [=] { memset(reinterpret_cast<void *>(to), value, bytes); });
    return OK;
}
// The other fake's code: a first line with the architecture, then a line for each kernel with its most threads.
int cuModuleLoadData(void **module, const void *image) {
    ENTER();
    std::string text = static_cast<const char *>(image);
    const std::string begin = "\x7f" "ELFfake sm_";
    if (text.compare(0, begin.size(), begin)) return INVALID_IMAGE;
    if (text[begin.size()] - '0' != settings["major"]) return NO_BINARY;
    auto *made = new Module;
    for (size_t at = text.find('\n') + 1; at < text.size(); at = text.find('\n', at) + 1) {
        size_t space = text.find(' ', at);
        std::string name = text.substr(at, space - at);
        made->functions[name] = new Function{name, atoi(text.c_str() + space)};
    }
    modules.insert(*module = made);
    return OK;
}
int cuModuleUnload(void *module) { ENTER(); return modules.erase(module) ? OK : INVALID_HANDLE; }
int cuModuleGetFunction(void **function, void *module, const char *name) {
    ENTER();
    auto &all = static_cast<Module *>(module)->functions;
    auto found = all.find(name);
    if (found == all.end()) return NOT_FOUND;
    *function = found->second;
    return OK;
}
int cuFuncGetAttribute(int *value, int attribute, void *function) {
    ENTER();
    if (attribute > 1) return INVALID_VALUE;
    *value = attribute == 0 ? static_cast<Function *>(function)->most_threads : 1024;
    return OK;
}
int cuFuncSetAttribute(void *function, int attribute, int value) {
    ENTER();
    if (attribute != 8) return INVALID_VALUE;
    static_cast<Function *>(function)->dynamic = value;
    return OK;
}
#ifndef OLD_DRIVER
// Its map is what it was given, in order, so that kernels and tests can read it.
int cuTensorMapEncodeTiled(u64 *map, unsigned type, unsigned rank, void *at, const u64 *sizes, const u64 *strides,
                           const unsigned *part, const unsigned *steps, unsigned interleave, unsigned swizzle,
                           unsigned promotion, unsigned fill) {
    ENTER();
    if (rank != 3 || address(map) % 64) return INVALID_VALUE;
    const u64 words[16] = {type, address(at), sizes[0], sizes[1], sizes[2], strides[0], strides[1], part[0], part[1], part[2],
                           u64(steps[0]) * steps[1] * steps[2], interleave, swizzle, promotion, fill, 0x7a7a};
    memcpy(map, words, sizeof words);
    return OK;
}
#endif
int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned threads_y,
                   unsigned threads_z, unsigned shared, void *stream, void **parameters, void **extra) {
    ENTER();
    auto *kernel = static_cast<Function *>(function);
    if (!x || !y || !z || int(threads) > kernel->most_threads || threads_y != 1 || threads_z != 1 || extra
        || int(shared) > kernel->dynamic || !streams.count(stream)) return INVALID_VALUE;
    char line[256];
    snprintf(line, sizeof line, "%s %u,%u,%u x %u, %u\n", kernel->name.c_str(), x, y, z, threads, shared);
    log_text += line;
    if (const char *path = getenv("FAKE_CUDA_LOG"))
        if (FILE *file = fopen(path, "a")) { fputs(line, file); fclose(file); }
    if (kernel->name.compare(0, 12, "flash_hopper") == 0) {
        // Its first three parameters are maps: where each one's tensor begins, and the rows of a part.
        for (int i = 0; i < 3; i++) {
            auto *map = static_cast<u64 *>(parameters[i]);
            if (map[15] != 0x7a7a) return INVALID_VALUE;
            snprintf(line, sizeof line, "map %llx, %llu rows\n", map[1], map[8]);
            log_text += line;
        }
    }
    if (kernel->name != "fill") {
        if (kernel_milliseconds) push(static_cast<Stream *>(stream), kernel_milliseconds, [] {});
        return OK;
    }
    // The one kernel that is imitated, for f32 and for zeros of any type: fill(Run dst, u64 len, float value).
    struct Run { u64 at; uint32_t type, reserved; };
    auto run = *static_cast<Run *>(parameters[0]);
    auto length = *static_cast<u64 *>(parameters[1]);
    auto value = *static_cast<float *>(parameters[2]);
    push(static_cast<Stream *>(stream), 1, [=] {
        const size_t widths[] = {8, 4, 2, 2, 4, 4, 1};
        bool known = run.type == 1 || (run.type < 7 && value == 0);
        size_t bytes = known ? length * widths[run.type] : 0;
        // Kernels reach pinned memory too.
        if (!known || !(inside(device_memory, run.at, bytes) || inside(host_memory, run.at, bytes))) {
            sticky = ILLEGAL_ADDRESS;
            return;
        }
        if (value == 0) memset(reinterpret_cast<void *>(run.at), 0, bytes);
        else for (u64 i = 0; i < length; i++) reinterpret_cast<float *>(run.at)[i] = value;
    });
    return OK;
}
}
