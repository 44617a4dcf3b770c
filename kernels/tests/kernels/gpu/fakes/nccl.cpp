// An NCCL that is none, for tests: ranks are processes of one machine, and bytes travel through memory that they share. Groups
// can be split. A group takes device memory at its first collective, as NCCL does when it connects: FAKE_NCCL_BYTES of it.
// Sums are in the order of ranks. What is not imitated is refused by name.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace {
enum { OK = 0, CUDA_FAILED = 1, SYSTEM_FAILED = 2, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, REMOTE_FAILED = 6 };
const size_t SLOT = 1 << 20;
const auto LONGEST = std::chrono::seconds(120);
struct Id { char name[128]; };
struct Shared { std::atomic<int> arrived, generation; char pad[4088]; };
struct Comm {
    std::string name;
    int rank, size, splits = 0, state = OK;
    Shared *shared = nullptr;
    char *slots = nullptr;
    bool connected = false;
};
thread_local std::string last_error;
int failed(int code, const std::string &words) { last_error = words; return code; }

char *slot(Comm *comm, int rank) { return comm->slots + rank * SLOT; }
size_t bytes_of(Comm *comm) { return sizeof(Shared) + comm->size * SLOT; }

int barrier(Comm *comm) {
    int generation = comm->shared->generation;
    if (comm->shared->arrived.fetch_add(1) + 1 == comm->size) {
        comm->shared->arrived = 0;
        comm->shared->generation++;
        return OK;
    }
    auto begin = std::chrono::steady_clock::now();
    while (comm->shared->generation == generation) {
        if (std::chrono::steady_clock::now() - begin > LONGEST) return comm->state = failed(REMOTE_FAILED, "a rank did not come");
        std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    return OK;
}

int open(Comm *comm) {
    int file = shm_open(comm->name.c_str(), O_CREAT | O_RDWR, 0600);
    if (file < 0 || ftruncate(file, bytes_of(comm))) return failed(SYSTEM_FAILED, "no shared memory");
    void *at = mmap(nullptr, bytes_of(comm), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (at == MAP_FAILED) return failed(SYSTEM_FAILED, "no shared memory");
    comm->shared = static_cast<Shared *>(at);
    comm->slots = static_cast<char *>(at) + sizeof(Shared);
    if (int code = barrier(comm)) return code;
    if (comm->rank == 0) shm_unlink(comm->name.c_str());
    return barrier(comm);
}

int connect(Comm *comm) {
    if (comm->connected) return OK;
    comm->connected = true;
    const char *wanted = getenv("FAKE_NCCL_BYTES");
    size_t bytes = wanted ? strtoull(wanted, nullptr, 10) : 0;
    if (!bytes) return OK;
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
    auto allocate = driver ? reinterpret_cast<int (*)(unsigned long long *, size_t)>(dlsym(driver, "cuMemAlloc_v2")) : nullptr;
    unsigned long long at = 0;
    if (!allocate || allocate(&at, bytes))
        return comm->state = failed(CUDA_FAILED, "no room for the " + std::to_string(bytes) + " bytes of a communicator");
    return OK;
}

// A call begins when its stream has come to it. What was asked of the stream before is done here, so that a call that follows the
// wrong event still finds what the kernels have not written yet.
int reach(void *stream) {
    static auto driver = dlopen("libcuda.so.1", RTLD_LAZY);
    static auto finish = driver ? reinterpret_cast<int (*)(void *)>(dlsym(driver, "cuStreamSynchronize")) : nullptr;
    if (!finish || finish(stream)) return failed(CUDA_FAILED, "what the call follows failed");
    return OK;
}

size_t size_of(int type) { return type == 0 || type == 1 ? 1 : type == 6 || type == 9 ? 2 : type == 8 ? 8 : 4; }
template <typename T> void add(T *to, const T *from, size_t count, int op) {
    for (size_t i = 0; i < count; i++) {
        if (op == 0) to[i] += from[i];
        else if (op == 2) to[i] = from[i] > to[i] ? from[i] : to[i];
        else to[i] = from[i] < to[i] ? from[i] : to[i];
    }
}
float wide(uint16_t bits) { uint32_t word = uint32_t(bits) << 16; float value; memcpy(&value, &word, 4); return value; }
uint16_t narrow(float value) { uint32_t word; memcpy(&word, &value, 4); return word >> 16; }
int reduce(char *to, const char *from, size_t count, int type, int op) {
    if (op != 0 && op != 2 && op != 3) return failed(INVALID_ARGUMENT, "the imitation has sum, max and min");
    switch (type) {
    case 2: add(reinterpret_cast<int32_t *>(to), reinterpret_cast<const int32_t *>(from), count, op); return OK;
    case 3: add(reinterpret_cast<uint32_t *>(to), reinterpret_cast<const uint32_t *>(from), count, op); return OK;
    case 7: add(reinterpret_cast<float *>(to), reinterpret_cast<const float *>(from), count, op); return OK;
    case 8: add(reinterpret_cast<double *>(to), reinterpret_cast<const double *>(from), count, op); return OK;
    case 9:
        for (size_t i = 0; i < count; i++) {
            auto *there = reinterpret_cast<uint16_t *>(to) + i;
            float sum = wide(*there), own = wide(reinterpret_cast<const uint16_t *>(from)[i]);
            add(&sum, &own, 1, op);
            *there = narrow(sum);
        }
        return OK;
    default: return failed(INVALID_ARGUMENT, "the imitation does not reduce type " + std::to_string(type));
    }
}

// Everybody shows a piece of `send`; `take` is told of each piece, where all ranks' are seen.
template <typename Take> int pieces(Comm *comm, void *stream, const char *send, size_t count, size_t width, Take take) {
    if (int code = connect(comm)) return code;
    if (int code = reach(stream)) return comm->state = code;
    const size_t most = SLOT / width;
    for (size_t from = 0; from == 0 || from < count; from += most) {
        size_t part = count - from < most ? count - from : most;
        if (send) memcpy(slot(comm, comm->rank), send + from * width, part * width);
        if (int code = barrier(comm)) return code;
        if (int code = take(from, part)) return code;
        if (int code = barrier(comm)) return code;
    }
    return OK;
}
} // namespace

extern "C" {
int ncclGetVersion(int *version) { *version = 22809; return OK; }
int ncclGetUniqueId(Id *id) {
    static std::atomic<int> number{0};
    memset(id, 0, sizeof *id);
    snprintf(id->name, sizeof id->name, "/zbench-fake-nccl-%d-%d", getpid(), number++);
    return OK;
}
const char *ncclGetErrorString(int code) { return code == OK ? "no error" : "an error of the imitated NCCL"; }
const char *ncclGetLastError(Comm *) { return last_error.c_str(); }
int ncclCommInitRankConfig(Comm **comm, int size, Id id, int rank, void *) {
    auto *made = new Comm{id.name, rank, size};
    int code = open(made);
    *comm = made;
    return code;
}
int ncclCommSplit(Comm *comm, int color, int key, Comm **child, void *) {
    int own[2] = {color, key};
    std::vector<int> all(2 * comm->size);
    memcpy(slot(comm, comm->rank), own, sizeof own);
    if (int code = barrier(comm)) return code;
    for (int rank = 0; rank < comm->size; rank++) memcpy(&all[2 * rank], slot(comm, rank), sizeof own);
    if (int code = barrier(comm)) return code;
    int rank = 0, size = 0;
    for (int other = 0; other < comm->size; other++) {
        if (all[2 * other] != color) continue;
        size++;
        rank += all[2 * other + 1] < key || (all[2 * other + 1] == key && other < comm->rank);
    }
    auto *made = new Comm{comm->name + "." + std::to_string(comm->splits++) + "." + std::to_string(color), rank, size};
    int code = open(made);
    *child = made;
    return code;
}
int ncclCommGetAsyncError(Comm *comm, int *state) { *state = comm->state; return OK; }
int ncclCommFinalize(Comm *) { return OK; }
int ncclCommDestroy(Comm *comm) { munmap(comm->shared, bytes_of(comm)); delete comm; return OK; }
int ncclCommAbort(Comm *comm) { return ncclCommDestroy(comm); }
int ncclCommCount(Comm *comm, int *count) { *count = comm->size; return OK; }
int ncclCommUserRank(Comm *comm, int *rank) { *rank = comm->rank; return OK; }
int ncclCommCuDevice(Comm *, int *) { return failed(INVALID_USAGE, "the imitation does not know its device"); }
int ncclGroupStart() { return OK; }
int ncclGroupEnd() { return OK; }
int ncclAllReduce(const char *send, char *recv, size_t count, int type, int op, Comm *comm, void *stream) {
    size_t width = size_of(type);
    return pieces(comm, stream, send, count, width, [&](size_t from, size_t part) {
        std::vector<char> sum(slot(comm, 0), slot(comm, 0) + part * width);
        for (int rank = 1; rank < comm->size; rank++)
            if (int code = reduce(sum.data(), slot(comm, rank), part, type, op)) return code;
        memcpy(recv + from * width, sum.data(), part * width);
        return int(OK);
    });
}
int ncclReduceScatter(const char *send, char *recv, size_t count, int type, int op, Comm *comm, void *stream) {
    size_t width = size_of(type);
    // `recv` may be part of `send`: it is written when all has been shown.
    std::vector<char> own(count * width);
    int result = pieces(comm, stream, send, count * comm->size, width, [&](size_t from, size_t part) {
        size_t begin = comm->rank * count, end = begin + count;
        size_t low = from > begin ? from : begin, high = from + part < end ? from + part : end;
        if (low >= high) return int(OK);
        char *to = own.data() + (low - begin) * width;
        memcpy(to, slot(comm, 0) + (low - from) * width, (high - low) * width);
        for (int rank = 1; rank < comm->size; rank++)
            if (int code = reduce(to, slot(comm, rank) + (low - from) * width, high - low, type, op)) return code;
        return int(OK);
    });
    if (result == OK) memcpy(recv, own.data(), own.size());
    return result;
}
int ncclAllGather(const char *send, char *recv, size_t count, int type, Comm *comm, void *stream) {
    size_t width = size_of(type);
    return pieces(comm, stream, send, count, width, [&](size_t from, size_t part) {
        for (int rank = 0; rank < comm->size; rank++)
            memcpy(recv + (rank * count + from) * width, slot(comm, rank), part * width);
        return int(OK);
    });
}
int ncclBroadcast(const char *send, char *recv, size_t count, int type, int root, Comm *comm, void *stream) {
    size_t width = size_of(type);
    return pieces(comm, stream, comm->rank == root ? send : nullptr, count, width, [&](size_t from, size_t part) {
        memcpy(recv + from * width, slot(comm, root), part * width);
        return int(OK);
    });
}
int ncclReduce(const char *, char *, size_t, int, int, int, Comm *, void *) {
    return failed(INVALID_USAGE, "the imitation has no ncclReduce");
}
int ncclSend(const char *, size_t, int, int, Comm *, void *) { return failed(INVALID_USAGE, "the imitation has no ncclSend"); }
int ncclRecv(char *, size_t, int, int, Comm *, void *) { return failed(INVALID_USAGE, "the imitation has no ncclRecv"); }
}
