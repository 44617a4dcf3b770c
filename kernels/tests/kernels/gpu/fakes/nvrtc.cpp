// A compiler that is none, for tests: its code is the architecture and the names of the kernels.
#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

namespace {
struct Program { std::string text, code, log; bool prelude = false; };
std::atomic<int> compiles{0}, running{0}, most{0}, major{13}, minor{0};
} // namespace

extern "C" {
int fake_compiles() { return compiles; }
int fake_most_at_once() { return most; }
void fake_major(int value) { major = value; }
void fake_minor(int value) { minor = value; }

int nvrtcVersion(int *major_version, int *minor_version) { *major_version = major; *minor_version = minor; return 0; }
const char *nvrtcGetErrorString(int code) { return code == 6 ? "NVRTC_ERROR_COMPILATION" : nullptr; }
int nvrtcCreateProgram(void **program, const char *text, const char *, int headers, const char *const *texts,
                       const char *const *names) {
    auto *made = new Program;
    made->text = text;
    for (int i = 0; i < headers; i++) made->prelude |= !strcmp(names[i], "prelude.h") && strlen(texts[i]) > 1000;
    *program = made;
    return 0;
}
int nvrtcDestroyProgram(void **program) { delete static_cast<Program *>(*program); *program = nullptr; return 0; }
int nvrtcCompileProgram(void *handle, int count, const char *const *options) {
    auto *program = static_cast<Program *>(handle);
    compiles++;
    int now = ++running;
    for (int seen = most; seen < now && !most.compare_exchange_weak(seen, now);) {}
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    running--;
    std::string architecture;
    for (int i = 0; i < count; i++)
        if (!strncmp(options[i], "--gpu-architecture=", 19)) architecture = options[i] + 19;
    if (architecture.empty() || !program->prelude) { program->log = "no architecture, or no prelude"; return 6; }
    program->code = "\x7f" "ELFfake " + architecture + "\n";
    const std::string &text = program->text;
    const std::string bounds = "__launch_bounds__(";
    for (size_t at = text.find(bounds); at != std::string::npos; at = text.find(bounds, at + 1)) {
        size_t start = at + bounds.size(), close = text.find(')', at), open = text.find('(', close);
        std::string threads = text.substr(start, close - start), name = text.substr(close + 2, open - close - 2);
        // What is no number is some constant of the source's.
        if (threads.find_first_not_of("0123456789") != std::string::npos) threads = "1024";
        program->code += name + " " + threads + "\n";
        program->log += "ptxas info    : Compiling entry function '" + name + "' for '" + architecture + "'\n"
            + "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\nptxas info    : Used 32 registers\n";
    }
    program->code += '\0';
    return 0;
}
int nvrtcGetCUBINSize(void *program, size_t *bytes) { *bytes = static_cast<Program *>(program)->code.size(); return 0; }
int nvrtcGetCUBIN(void *handle, char *to) {
    auto *program = static_cast<Program *>(handle);
    memcpy(to, program->code.data(), program->code.size());
    return 0;
}
int nvrtcGetProgramLogSize(void *program, size_t *bytes) { *bytes = static_cast<Program *>(program)->log.size() + 1; return 0; }
int nvrtcGetProgramLog(void *handle, char *to) { strcpy(to, static_cast<Program *>(handle)->log.c_str()); return 0; }
}
