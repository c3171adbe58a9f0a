/* A stand-in for libnvidia-ml.so.1 that describes the GPUs in the file named by NVML_STUB_GPUS.
 *
 * One thing a line, words apart by blanks, "_" in a name for a blank:
 *
 *     gpu uuid=GPU-1 pci=00000000:17:00.0 name=NVIDIA_H100 minor=0 affinity=0x1 node=2 mig=1 cpus=0x3
 *     mig uuid=MIG-1 gi=1 ci=0                       (an instance of the gpu line before)
 *     process 4711                                   (computes on the gpu line before)
 *     fail nvmlDeviceGetMinorNumber 3                (every call of it answers this nvmlReturn_t)
 *
 * Signatures: NVML API reference (nvml.h). Only what numabind asks is here; nvidia-ml-py reports any
 * other function as FUNCTION_NOT_FOUND, as it does with an old driver.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, UNINITIALIZED = 1,
       INSUFFICIENT_SIZE = 7 };
enum { MOST_GPUS = 32, MOST_INSTANCES = 8, MOST_FAILURES = 16, MOST_PROCESSES = 8, TEXT = 96 };

struct device {
    char uuid[TEXT], pci[TEXT], name[TEXT];
    unsigned minor, mig, gpu_instance, compute_instance;
    unsigned long affinity, cpus;
    int node;
    int parts;
    unsigned processes, process[MOST_PROCESSES];
    struct device *part[MOST_INSTANCES], *parent;
};

static struct device gpus[MOST_GPUS], instances[MOST_GPUS * MOST_INSTANCES];
static struct { char name[TEXT]; int code; } failures[MOST_FAILURES];
static int gpu_count, instance_count, failure_count, users;

static void copy(char *to, const char *from)
{
    snprintf(to, TEXT, "%s", from);
}

static void set(struct device *device, const char *key, const char *value)
{
    if (!strcmp(key, "uuid"))
        copy(device->uuid, value);
    else if (!strcmp(key, "pci"))
        copy(device->pci, value);
    else if (!strcmp(key, "name")) {
        copy(device->name, value);
        for (char *c = device->name; *c; c++)
            if (*c == '_')
                *c = ' ';
    } else if (!strcmp(key, "minor"))
        device->minor = (unsigned)strtoul(value, NULL, 0);
    else if (!strcmp(key, "affinity"))
        device->affinity = strtoul(value, NULL, 0);
    else if (!strcmp(key, "cpus"))
        device->cpus = strtoul(value, NULL, 0);
    else if (!strcmp(key, "node"))
        device->node = atoi(value);
    else if (!strcmp(key, "mig"))
        device->mig = (unsigned)strtoul(value, NULL, 0);
    else if (!strcmp(key, "gi"))
        device->gpu_instance = (unsigned)strtoul(value, NULL, 0);
    else if (!strcmp(key, "ci"))
        device->compute_instance = (unsigned)strtoul(value, NULL, 0);
}

static struct device *begin(const char *kind)
{
    struct device *device = NULL;
    if (!strcmp(kind, "gpu") && gpu_count < MOST_GPUS)
        device = memset(&gpus[gpu_count++], 0, sizeof *device);
    else if (!strcmp(kind, "mig") && gpu_count) {
        struct device *parent = &gpus[gpu_count - 1];
        if (parent->parts == MOST_INSTANCES)
            return NULL;
        device = &instances[instance_count++];
        device->parent = parent;
        parent->part[parent->parts++] = device;
    }
    if (device)
        device->node = -1;
    return device;
}

static void read_line(char *line)
{
    char *rest = NULL, *kind = strtok_r(line, " \t\n", &rest), *word;
    if (!kind)
        return;
    if (!strcmp(kind, "fail")) {
        char *name = strtok_r(NULL, " \t\n", &rest), *code = strtok_r(NULL, " \t\n", &rest);
        if (name && code && failure_count < MOST_FAILURES) {
            copy(failures[failure_count].name, name);
            failures[failure_count++].code = atoi(code);
        }
        return;
    }
    if (!strcmp(kind, "process")) {
        struct device *gpu = gpu_count ? &gpus[gpu_count - 1] : NULL;
        char *pid = strtok_r(NULL, " \t\n", &rest);
        if (gpu && pid && gpu->processes < MOST_PROCESSES)
            gpu->process[gpu->processes++] = (unsigned)strtoul(pid, NULL, 10);
        return;
    }
    struct device *device = begin(kind);
    while (device && (word = strtok_r(NULL, " \t\n", &rest))) {
        char *value = strchr(word, '=');
        if (value) {
            *value = 0;
            set(device, word, value + 1);
        }
    }
}

static void read_description(void)
{
    const char *path = getenv("NVML_STUB_GPUS");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[1024];
    while (file && fgets(line, sizeof line, file))
        read_line(line);
    if (file)
        fclose(file);
}

static int failure(const char *name)
{
    for (int i = 0; i < failure_count; i++)
        if (!strcmp(failures[i].name, name))
            return failures[i].code;
    return users ? SUCCESS : UNINITIALIZED;
}

#define CHECK(name)                   \
    do {                              \
        int code_ = failure(name);    \
        if (code_)                    \
            return code_;             \
    } while (0)

int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    if (!users++)
        read_description();
    int code = failure("nvmlInit");
    if (code)
        users--;
    return code;
}

int nvmlShutdown(void)
{
    if (!users)
        return UNINITIALIZED;
    if (!--users)
        gpu_count = instance_count = failure_count = 0;
    return SUCCESS;
}

const char *nvmlErrorString(int code)
{
    switch (code) {
    case SUCCESS: return "Success";
    case NOT_SUPPORTED: return "Not Supported";
    case 9: return "Driver Not Loaded";
    case 18: return "Driver/library version mismatch";
    default: return "stub error";
    }
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    CHECK("nvmlDeviceGetCount");
    *count = (unsigned)gpu_count;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct device **device)
{
    CHECK("nvmlDeviceGetHandleByIndex");
    if (index >= (unsigned)gpu_count)
        return INVALID_ARGUMENT;
    *device = &gpus[index];
    return SUCCESS;
}

int nvmlDeviceGetUUID(struct device *device, char *uuid, unsigned length)
{
    CHECK("nvmlDeviceGetUUID");
    snprintf(uuid, length, "%s", device->uuid);
    return SUCCESS;
}

int nvmlDeviceGetName(struct device *device, char *name, unsigned length)
{
    CHECK("nvmlDeviceGetName");
    snprintf(name, length, "%s", device->name);
    return SUCCESS;
}

int nvmlDeviceGetMinorNumber(struct device *device, unsigned *minor)
{
    CHECK("nvmlDeviceGetMinorNumber");
    *minor = device->minor;
    return SUCCESS;
}

struct pci_info {
    char legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};

int nvmlDeviceGetPciInfo_v3(struct device *device, struct pci_info *pci)
{
    CHECK("nvmlDeviceGetPciInfo");
    memset(pci, 0, sizeof *pci);
    snprintf(pci->bus_id, sizeof pci->bus_id, "%.31s", device->pci);
    return SUCCESS;
}

int nvmlDeviceGetMemoryAffinity(struct device *device, unsigned size, unsigned long *nodes,
                                unsigned scope)
{
    (void)scope;
    CHECK("nvmlDeviceGetMemoryAffinity");
    if (!size)
        return INVALID_ARGUMENT;
    memset(nodes, 0, size * sizeof *nodes);
    nodes[0] = device->affinity;
    return SUCCESS;
}

int nvmlDeviceGetCpuAffinity(struct device *device, unsigned size, unsigned long *cpus)
{
    CHECK("nvmlDeviceGetCpuAffinity");
    if (!size)
        return INVALID_ARGUMENT;
    memset(cpus, 0, size * sizeof *cpus);
    cpus[0] = device->cpus;
    return SUCCESS;
}

int nvmlDeviceGetNumaNodeId(struct device *device, int *node)
{
    CHECK("nvmlDeviceGetNumaNodeId");
    if (device->node < 0)
        return NOT_SUPPORTED;
    *node = device->node;
    return SUCCESS;
}

int nvmlDeviceGetMigMode(struct device *device, unsigned *current, unsigned *pending)
{
    CHECK("nvmlDeviceGetMigMode");
    *current = *pending = device->mig;
    return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(struct device *device, unsigned *count)
{
    CHECK("nvmlDeviceGetMaxMigDeviceCount");
    *count = device->mig ? 7 : 0;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(struct device *device, unsigned index,
                                        struct device **instance)
{
    CHECK("nvmlDeviceGetMigDeviceHandleByIndex");
    if (index >= (unsigned)device->parts)
        return NOT_FOUND;
    *instance = device->part[index];
    return SUCCESS;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(struct device *instance, struct device **device)
{
    CHECK("nvmlDeviceGetDeviceHandleFromMigDeviceHandle");
    if (!instance->parent)
        return INVALID_ARGUMENT;
    *device = instance->parent;
    return SUCCESS;
}

int nvmlDeviceGetGpuInstanceId(struct device *instance, unsigned *id)
{
    CHECK("nvmlDeviceGetGpuInstanceId");
    *id = instance->gpu_instance;
    return SUCCESS;
}

int nvmlDeviceGetComputeInstanceId(struct device *instance, unsigned *id)
{
    CHECK("nvmlDeviceGetComputeInstanceId");
    *id = instance->compute_instance;
    return SUCCESS;
}

struct process_info {
    unsigned pid;
    unsigned long long used_memory;
    unsigned gpu_instance, compute_instance;
};

int nvmlDeviceGetComputeRunningProcesses_v3(struct device *device, unsigned *count,
                                            struct process_info *infos)
{
    CHECK("nvmlDeviceGetComputeRunningProcesses");
    unsigned room = infos ? *count : 0;
    *count = device->processes;
    if (room < device->processes)
        return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < device->processes; i++)
        infos[i] = (struct process_info){device->process[i], 1 << 20, ~0u, ~0u};
    return SUCCESS;
}
