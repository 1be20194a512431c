/* A stand-in for libnvidia-ml.so.1, so that the real binding can be driven into every corner without a GPU.
 *
 * It is told by the environment, which is read at every call:
 *   MOCK_GPUS=4            how many GPUs there are            MOCK_ABSENT=3       one that is no longer counted
 *   MOCK_NAME, MOCK_DRIVER names                             MOCK_INIT=18        the error of nvmlInit
 *   MOCK_FAIL=who:Call=code,...    who is a GPU ("1"), an instance ("1.0"), the host ("host") or all ("*")
 *   MOCK_BLOCK=who:Call,...        the call does not return before the file MOCK_RELEASE is there
 *   MOCK_MIG=0:2           GPU 0 is cut into two instances
 *   MOCK_UTIL=0:37,1:5     MOCK_MEMORY=0:512 (MiB in use)    MOCK_POWER=0:500000 (mW)
 *   MOCK_SCOPE=0:185:1:512000,...  a field value of power: who, field, scope, mW; without it there are none
 *   MOCK_ENERGY=0:9000000  the counter in mJ; without it, it grows with the power
 *   MOCK_PROCS=0:123:1048576,...   pid and bytes (-1: not told)
 *   MOCK_GPM=5:37.25,2:nan metrics of every GPU; without it GPM is not supported
 *   MOCK_XID=0:79,0:79     events, each delivered once       MOCK_ECC=0:3        uncorrected errors
 *   MOCK_ROWS=0:1:2:1:0    corrected, uncorrected, pending, failure
 *   MOCK_PAGES=0:3:1:1     retired for single bits, for double bits, pending
 * Built with -DOLD_DRIVER it lacks what came late: versioned memory, GPM, field values, event reasons.
 */
#define _GNU_SOURCE
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, TIMED_OUT = 10 };
enum { MOST = 64, MOST_MIG = 7 };

struct device { int gpu; int instance; };
static struct device gpus[MOST];
static struct device instances[MOST][MOST_MIG];
static int initialized, delivered;
static double started_s;

typedef struct device *handle;

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static const char *word(const char *name, const char *otherwise) {
    const char *value = getenv(name);
    return value && *value ? value : otherwise;
}

static int number(const char *name, int otherwise) {
    return atoi(word(name, "")) ? atoi(word(name, "")) : (getenv(name) && *getenv(name) ? 0 : otherwise);
}

static void who_is(handle device, char *text, size_t size) {
    if (!device) snprintf(text, size, "host");
    else if (device->instance < 0) snprintf(text, size, "%d", device->gpu);
    else snprintf(text, size, "%d.%d", device->gpu, device->instance);
}

/* The rest of the entry that begins with "who:" in a list, from the n-th such entry; NULL when there is none. */
static const char *entry(const char *name, const char *who, int skip, char *rest, size_t size) {
    const char *at = word(name, "");
    size_t length = strlen(who);
    while (*at) {
        size_t span = strcspn(at, ",");
        if (span > length && !strncmp(at, who, length) && at[length] == ':' && skip-- == 0) {
            size_t left = span - length - 1;
            if (left >= size) left = size - 1;
            memcpy(rest, at + length + 1, left);
            rest[left] = 0;
            return rest;
        }
        at += span + (at[span] == ',');
    }
    return NULL;
}

static int value_of(const char *name, handle device, long long otherwise, long long *value) {
    char who[32], rest[128];
    who_is(device, who, sizeof who);
    int told = entry(name, who, 0, rest, sizeof rest) || entry(name, "*", 0, rest, sizeof rest);
    *value = told ? atoll(rest) : otherwise;
    return told;
}

static int fault_of(const char *who, const char *call) {
    char rest[128];
    for (int n = 0; entry("MOCK_BLOCK", who, n, rest, sizeof rest); n++)
        if (!strcmp(rest, call)) {
            char release[512];
            snprintf(release, sizeof release, "%s", word("MOCK_RELEASE", "/nonexistent"));
            while (access(release, F_OK)) usleep(2000);
        }
    size_t length = strlen(call);
    for (int n = 0; entry("MOCK_FAIL", who, n, rest, sizeof rest); n++)
        if (!strncmp(rest, call, length) && rest[length] == '=') return atoi(rest + length + 1);
    return OK;
}

static int fault(handle device, const char *call) {
    char who[32];
    if (!initialized) return UNINITIALIZED;
    who_is(device, who, sizeof who);
    int code = fault_of(who, call);
    return code ? code : fault_of("*", call);
}

#define ENTER(device, call) do { int code_ = fault(device, call); if (code_) return code_; } while (0)

static int instances_of(int gpu) {
    long long count;
    value_of("MOCK_MIG", &gpus[gpu], 0, &count);
    return (int)count;
}

static long long power_mw(handle device) {
    long long power;
    value_of("MOCK_POWER", device, 500000, &power);
    return power;
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    initialized = 1;
    int code = number("MOCK_INIT", 0);
    if (!code) code = fault_of("host", "Init");
    if (code) { initialized = 0; return code; }
    if (!started_s) started_s = now_s();
    for (int g = 0; g < MOST; g++) {
        gpus[g].gpu = g;
        gpus[g].instance = -1;
        for (int i = 0; i < MOST_MIG; i++) { instances[g][i].gpu = g; instances[g][i].instance = i; }
    }
    return OK;
}
int nvmlShutdown(void) { initialized = 0; return OK; }
void mock_reset(void) { delivered = 0; initialized = 0; started_s = 0; }
const char *nvmlErrorString(int code) {
    static char text[MOST][32];
    char *line = text[code % MOST];
    snprintf(line, 32, "mock error %d", code);
    return line;
}
int nvmlSystemGetDriverVersion(char *text, unsigned size) {
    ENTER(NULL, "GetDriverVersion");
    snprintf(text, size, "%s", word("MOCK_DRIVER", "550.54.15"));
    return OK;
}
int nvmlDeviceGetCount_v2(unsigned *count) {
    ENTER(NULL, "GetCount");
    *count = number("MOCK_GPUS", 1) - (getenv("MOCK_ABSENT") && *getenv("MOCK_ABSENT") ? 1 : 0);
    return OK;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, handle *device) {
    int absent = number("MOCK_ABSENT", MOST);
    int gpu = (int)index >= absent ? (int)index + 1 : (int)index;
    if (gpu >= number("MOCK_GPUS", 1)) return INVALID;
    ENTER(&gpus[gpu], "GetHandleByIndex");
    *device = &gpus[gpu];
    return OK;
}
int nvmlDeviceGetUUID(handle device, char *text, unsigned size) {
    ENTER(device, "GetUUID");
    if (device->instance < 0) snprintf(text, size, "GPU-00000000-0000-4000-8000-%012d", device->gpu);
    else snprintf(text, size, "MIG-00000000-0000-4000-8000-%06d%06d", device->gpu, device->instance);
    return OK;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, handle *device) {
    char text[96];
    for (int g = 0; g < number("MOCK_GPUS", 1); g++)
        if (!nvmlDeviceGetUUID(&gpus[g], text, sizeof text) && !strcmp(text, uuid)) { *device = &gpus[g]; return OK; }
    return NOT_FOUND;
}
int nvmlDeviceGetName(handle device, char *text, unsigned size) {
    ENTER(device, "GetName");
    snprintf(text, size, "%s%s", word("MOCK_NAME", "NVIDIA H100 80GB HBM3"), device->instance < 0 ? "" : " MIG 3g.40gb");
    return OK;
}
struct pci { char legacy[16]; unsigned domain, bus, device, id, sub; char text[32]; };
int nvmlDeviceGetPciInfo_v3(handle device, struct pci *info) {
    ENTER(device, "GetPciInfo");
    memset(info, 0, sizeof *info);
    info->bus = 16 + device->gpu;
    snprintf(info->text, sizeof info->text, "00000000:%02X:00.0", info->bus);
    return OK;
}

static unsigned long long total_bytes(handle device) { return (device->instance < 0 ? 80ULL : 40ULL) << 30; }
static unsigned long long used_bytes(handle device) {
    long long mib;
    value_of("MOCK_MEMORY", device, 0, &mib);
    return (unsigned long long)mib << 20;
}
enum { RESERVED = 308 << 20 };
struct memory { unsigned long long total, free, used; };
int nvmlDeviceGetMemoryInfo(handle device, struct memory *info) {
    ENTER(device, "GetMemoryInfo");
    info->total = total_bytes(device);
    info->used = used_bytes(device) + RESERVED;
    info->free = info->total - info->used;
    return OK;
}
#ifndef OLD_DRIVER
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };
int nvmlDeviceGetMemoryInfo_v2(handle device, struct memory_v2 *info) {
    ENTER(device, "GetMemoryInfo");
    if (info->version != 0x02000028) return 25;
    info->total = total_bytes(device);
    info->reserved = RESERVED;
    info->used = used_bytes(device);
    info->free = info->total - info->used - RESERVED;
    return OK;
}
#endif

struct utilization { unsigned gpu, memory; };
int nvmlDeviceGetUtilizationRates(handle device, struct utilization *rates) {
    long long value;
    ENTER(device, "GetUtilizationRates");
    if (device->instance >= 0 || instances_of(device->gpu)) return NOT_SUPPORTED;
    value_of("MOCK_UTIL", device, 0, &value);
    rates->gpu = (unsigned)value;
    rates->memory = (unsigned)value / 2;
    return OK;
}
union value { double d; int i; unsigned u; unsigned long ul; unsigned long long ull; long long ll; };
struct sample { unsigned long long at_us; union value value; };
/* MOCK_SAMPLES=0:10,0:20 gives that many samples, newer than whatever was seen; without it there are none. */
int nvmlDeviceGetSamples(handle device, int kind, unsigned long long seen, int *type, unsigned *count, struct sample *all) {
    char who[32], rest[128];
    unsigned n = 0;
    (void)kind;
    ENTER(device, "GetSamples");
    who_is(device, who, sizeof who);
    *type = 1;
    if (!all) { *count = 120; return OK; }
    for (; entry("MOCK_SAMPLES", who, (int)n, rest, sizeof rest); n++) {
        all[n].at_us = seen + 1 + n;
        all[n].value.u = (unsigned)atoi(rest);
    }
    *count = n;
    return n ? OK : NOT_FOUND;
}
int nvmlDeviceGetPowerUsage(handle device, unsigned *mw) {
    ENTER(device, "GetPowerUsage");
    *mw = (unsigned)power_mw(device);
    return OK;
}
int nvmlDeviceGetEnforcedPowerLimit(handle device, unsigned *mw) {
    ENTER(device, "GetEnforcedPowerLimit");
    *mw = 700000;
    return OK;
}
int nvmlDeviceGetTotalEnergyConsumption(handle device, unsigned long long *mj) {
    long long value;
    ENTER(device, "GetTotalEnergyConsumption");
    if (!value_of("MOCK_ENERGY", device, 0, &value))
        value = (long long)((now_s() - started_s) * (double)power_mw(device));
    *mj = (unsigned long long)value;
    return OK;
}
#ifndef OLD_DRIVER
struct field { unsigned id, scope; long long at, latency; int type, code; union value value; };
int nvmlDeviceGetFieldValues(handle device, int count, struct field *fields) {
    char who[32], rest[128];
    ENTER(device, "GetFieldValues");
    who_is(device, who, sizeof who);
    for (int f = 0; f < count; f++) {
        fields[f].code = NOT_SUPPORTED;
        fields[f].type = 1;
        fields[f].value.ull = 0;
        if (fields[f].id == 91) { fields[f].code = OK; fields[f].value.u = 4; }
        for (int n = 0; entry("MOCK_SCOPE", who, n, rest, sizeof rest); n++) {
            unsigned id, scope, mw;
            if (sscanf(rest, "%u:%u:%u", &id, &scope, &mw) == 3 && id == fields[f].id && scope == fields[f].scope) {
                fields[f].code = OK;
                fields[f].value.u = mw;
            }
        }
    }
    return OK;
}
struct temperature { unsigned version, sensor; int value; };
int nvmlDeviceGetTemperatureV(handle device, struct temperature *info) {
    ENTER(device, "GetTemperature");
    info->value = 41 + device->gpu;
    return OK;
}
int nvmlDeviceGetCurrentClocksEventReasons(handle device, unsigned long long *mask) {
    ENTER(device, "GetCurrentClocksEventReasons");
    *mask = 0x4;
    return OK;
}
#else
int nvmlDeviceGetCurrentClocksThrottleReasons(handle device, unsigned long long *mask) {
    ENTER(device, "GetCurrentClocksEventReasons");
    *mask = 0x8;
    return OK;
}
#endif
int nvmlDeviceGetTemperature(handle device, unsigned sensor, unsigned *value) {
    (void)sensor;
    ENTER(device, "GetTemperature");
    *value = 40 + (unsigned)device->gpu;
    return OK;
}
int nvmlDeviceGetClockInfo(handle device, unsigned kind, unsigned *mhz) {
    ENTER(device, kind == 1 ? "GetSmClock" : "GetMemoryClock");
    *mhz = kind == 1 ? 1755 : 2619;
    return OK;
}
int nvmlDeviceGetMaxClockInfo(handle device, unsigned kind, unsigned *mhz) {
    (void)kind;
    ENTER(device, "GetMaxClockInfo");
    *mhz = 1980;
    return OK;
}
int nvmlDeviceGetPerformanceState(handle device, unsigned *state) {
    ENTER(device, "GetPerformanceState");
    *state = 0;
    return OK;
}
int nvmlDeviceGetTotalEccErrors(handle device, unsigned kind, unsigned counter, unsigned long long *count) {
    long long value;
    (void)counter;
    ENTER(device, kind ? "GetUncorrectedErrors" : "GetCorrectedErrors");
    value_of("MOCK_ECC", device, 0, &value);
    *count = kind ? (unsigned long long)value : 7;
    return OK;
}
int nvmlDeviceGetRemappedRows(handle device, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    char who[32], rest[128];
    ENTER(device, "GetRemappedRows");
    *corrected = *uncorrected = *pending = *failed = 0;
    who_is(device, who, sizeof who);
    if (entry("MOCK_ROWS", who, 0, rest, sizeof rest)) sscanf(rest, "%u:%u:%u:%u", corrected, uncorrected, pending, failed);
    return OK;
}
static void pages_of(handle device, unsigned *single, unsigned *twice, unsigned *pending) {
    char who[32], rest[128];
    *single = *twice = *pending = 0;
    who_is(device, who, sizeof who);
    if (entry("MOCK_PAGES", who, 0, rest, sizeof rest)) sscanf(rest, "%u:%u:%u", single, twice, pending);
}
int nvmlDeviceGetRetiredPages(handle device, unsigned cause, unsigned *count, unsigned long long *pages) {
    unsigned found[2], pending;
    ENTER(device, "GetRetiredPages");
    pages_of(device, &found[0], &found[1], &pending);
    for (unsigned at = 0; pages && at < found[cause & 1] && at < *count; at++) pages[at] = at;
    *count = found[cause & 1];
    return OK;
}
int nvmlDeviceGetRetiredPagesPendingStatus(handle device, unsigned *pending) {
    unsigned single, twice;
    ENTER(device, "GetRetiredPagesPendingStatus");
    pages_of(device, &single, &twice, pending);
    return OK;
}
int nvmlDeviceGetCurrPcieLinkGeneration(handle device, unsigned *value) {
    ENTER(device, "GetCurrPcieLinkGeneration");
    *value = 5;
    return OK;
}
int nvmlDeviceGetCurrPcieLinkWidth(handle device, unsigned *value) {
    ENTER(device, "GetCurrPcieLinkWidth");
    *value = 16;
    return OK;
}
int nvmlDeviceGetNvLinkState(handle device, unsigned link, unsigned *active) {
    ENTER(device, "GetNvLinkState");
    if (link >= 4) return INVALID;
    *active = link != 3;
    return OK;
}
int nvmlDeviceGetNumGpuCores(handle device, unsigned *count) {
    ENTER(device, "GetNumGpuCores");
    *count = 132 * 128;
    return OK;
}
int nvmlDeviceGetCudaComputeCapability(handle device, int *major, int *minor) {
    ENTER(device, "GetCudaComputeCapability");
    *major = 9;
    *minor = 0;
    return OK;
}

struct process { unsigned pid; unsigned long long bytes; unsigned gi, ci; };
int nvmlDeviceGetComputeRunningProcesses_v3(handle device, unsigned *count, struct process *all) {
    char who[32], rest[128];
    unsigned n = 0;
    ENTER(device, "GetComputeRunningProcesses");
    who_is(device, who, sizeof who);
    while (entry("MOCK_PROCS", who, (int)n, rest, sizeof rest)) {
        if (all && n < *count) {
            long long pid = 0, bytes = 0;
            sscanf(rest, "%lld:%lld", &pid, &bytes);
            all[n].pid = (unsigned)pid;
            all[n].bytes = (unsigned long long)bytes;
        }
        n++;
    }
    int fits = all ? n <= *count : n == 0;
    *count = n;
    return fits ? OK : TOO_SMALL;
}

int nvmlDeviceGetMigMode(handle device, unsigned *current, unsigned *pending) {
    ENTER(device, "GetMigMode");
    *current = *pending = instances_of(device->gpu) > 0;
    return OK;
}
int nvmlDeviceGetMaxMigDeviceCount(handle device, unsigned *count) {
    ENTER(device, "GetMaxMigDeviceCount");
    *count = MOST_MIG;
    return OK;
}
int nvmlDeviceGetMigDeviceHandleByIndex(handle device, unsigned index, handle *found) {
    ENTER(device, "GetMigDeviceHandleByIndex");
    if ((int)index >= instances_of(device->gpu)) return NOT_FOUND;
    *found = &instances[device->gpu][index];
    return OK;
}
int nvmlDeviceGetGpuInstanceId(handle device, unsigned *id) {
    ENTER(device, "GetGpuInstanceId");
    *id = (unsigned)device->instance + 1;
    return OK;
}
int nvmlDeviceGetComputeInstanceId(handle device, unsigned *id) {
    ENTER(device, "GetComputeInstanceId");
    *id = 0;
    return OK;
}
struct attributes { unsigned units, copies, decoders, encoders, jpegs, ofas, slices, compute_slices; unsigned long long mib; };
int nvmlDeviceGetAttributes_v2(handle device, struct attributes *found) {
    ENTER(device, "GetAttributes");
    if (device->instance < 0) return NOT_SUPPORTED;
    memset(found, 0, sizeof *found);
    found->units = 60;
    found->mib = 40960;
    return OK;
}

struct event { handle device; unsigned long long kind, data; unsigned gi, ci; };
int nvmlEventSetCreate(void **set) {
    ENTER(NULL, "EventSetCreate");
    *set = &delivered;
    return OK;
}
int nvmlDeviceRegisterEvents(handle device, unsigned long long kinds, void *set) {
    (void)kinds, (void)set;
    ENTER(device, "RegisterEvents");
    return OK;
}
int nvmlEventSetWait_v2(void *set, struct event *event, unsigned timeout_ms) {
    const char *at = word("MOCK_XID", "");
    (void)set, (void)timeout_ms;
    ENTER(NULL, "EventSetWait");
    for (int n = 0; n < delivered && *at; n++) {
        size_t span = strcspn(at, ",");
        at += span + (at[span] == ',');
    }
    int gpu, xid;
    if (sscanf(at, "%d:%d", &gpu, &xid) != 2) return TIMED_OUT;
    delivered++;
    memset(event, 0, sizeof *event);
    event->device = &gpus[gpu];
    event->kind = 8;
    event->data = (unsigned long long)xid;
    return OK;
}

#ifndef OLD_DRIVER
struct support { unsigned version, supported; };
int nvmlGpmQueryDeviceSupport(handle device, struct support *support) {
    ENTER(device, "GpmQueryDeviceSupport");
    support->supported = *word("MOCK_GPM", "") != 0;
    return OK;
}
struct gpm_sample { handle device; double at_s; };
int nvmlGpmSampleAlloc(struct gpm_sample **sample) {
    *sample = calloc(1, sizeof **sample);
    return OK;
}
int nvmlGpmSampleFree(struct gpm_sample *sample) { free(sample); return OK; }
int nvmlGpmSampleGet(handle device, struct gpm_sample *sample) {
    ENTER(device, "GpmSampleGet");
    sample->device = device;
    sample->at_s = now_s();
    return OK;
}
int nvmlGpmMigSampleGet(handle device, unsigned instance, struct gpm_sample *sample) {
    ENTER(&instances[device->gpu][instance - 1], "GpmSampleGet");
    sample->device = &instances[device->gpu][instance - 1];
    sample->at_s = now_s();
    return OK;
}
struct metric { unsigned id; int code; double value; const char *names[3]; };
struct metrics { unsigned version, count; struct gpm_sample *before, *after; struct metric all[]; };
int nvmlGpmMetricsGet(struct metrics *asked) {
    char id[16], rest[64];
    if (asked->version != 1 || asked->before == asked->after) return INVALID;
    ENTER(asked->after->device, "GpmMetricsGet");
    for (unsigned n = 0; n < asked->count; n++) {
        snprintf(id, sizeof id, "%u", asked->all[n].id);
        if (entry("MOCK_GPM", id, 0, rest, sizeof rest)) {
            asked->all[n].value = strtod(rest, NULL);
            asked->all[n].code = OK;
        } else {
            asked->all[n].code = NOT_SUPPORTED;
        }
    }
    return OK;
}
#endif
