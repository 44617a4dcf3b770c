// An NVML that is none, for tests.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

extern "C" {
static int by_uuid = 1, start = 0;
void fake_uuid(int works) { by_uuid = works; }
void fake_start(int code) { start = code; }
int nvmlInit_v2() { return start; }
const char *nvmlErrorString(int code) { return code == 3 ? "Not Supported" : code == 6 ? "Not Found" : nullptr; }
int nvmlSystemGetDriverVersion(char *text, unsigned bytes) { snprintf(text, bytes, "580.65.06"); return 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    *handle = &by_uuid;
    return by_uuid && !strncmp(uuid, "GPU-", 4) ? 0 : 6;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char *place, void **handle) {
    *handle = &by_uuid;
    return strcmp(place, "0000:0A:00.0") ? 6 : 0;
}
int nvmlDeviceGetClockInfo(void *, unsigned kind, unsigned *mhz) { *mhz = kind == 1 ? 1980 : kind == 2 ? 2619 : 0; return 0; }
int nvmlDeviceGetTemperature(void *, unsigned sensor, unsigned *celsius) { *celsius = 41; return sensor ? 2 : 0; }
int nvmlDeviceGetPowerUsage(void *, unsigned *milliwatts) { *milliwatts = 512345; return 0; }
int nvmlDeviceGetEnforcedPowerLimit(void *, unsigned *) { return 3; }
int nvmlDeviceGetTotalEnergyConsumption(void *, unsigned long long *millijoules) {
    // Grows with every look, by what is told to processes that no test calls into.
    static unsigned long long used = 1ull << 40;
    *millijoules = used;
    if (const char *step = getenv("FAKE_NVML_MILLIJOULES")) used += strtoull(step, nullptr, 10);
    return 0;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void *, unsigned long long *bits) { *bits = 4; return 0; }
struct Memory { unsigned version; unsigned long long total, reserved, free, used; };
int nvmlDeviceGetMemoryInfo_v2(void *, Memory *memory) {
    if (memory->version != (sizeof(Memory) | 2 << 24)) return 25;
    memory->total = 80ull << 30; memory->reserved = 600 << 20; memory->used = 3ull << 30;
    return 0;
}
}
