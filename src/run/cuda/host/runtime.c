/* The CUDA runtime on the host, for tests: devices whose streams are threads (streams.c), and whose
 * memory is closed to the host (memory.c). Here: copies, the process.
 *
 * Refused as far as CUDA would, or would take its time over them: handles of another device,
 * addresses that are no memory, host memory that is not pinned. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "run/cuda/host/inside.h"

enum { MOST_DEVICES = 16, HOST_SMS = 132 };

pthread_mutex_t host_lock = PTHREAD_MUTEX_INITIALIZER;
static int n_devices = 2;
static bool has_old_driver;
static _Thread_local int device;
static _Thread_local cudaError_t last_error;

int host_device(void)
{
    return device;
}

void host_set_device(int wanted)
{
    device = wanted;
}

cudaError_t host_failed(cudaError_t error)
{
    last_error = error;
    return error;
}

/* ---- copies ---------------------------------------------------------------------------------- */

typedef struct copy {
    void *to;
    const void *from; /* NULL: bytes of this value */
    int value;
    size_t n_bytes;
} copy;

static void run_copy(const void *user)
{
    const copy *c = user;
    if (c->from)
        memcpy(c->to, c->from, c->n_bytes);
    else
        memset(c->to, c->value, c->n_bytes);
}

/* Without a stream, as kernels are launched without one: on arrays of the host. */
static cudaError_t copy_now(const copy *c)
{
    run_copy(c);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    const int to = kind == cudaMemcpyDeviceToHost ? -1 : device;
    const int from = kind == cudaMemcpyHostToDevice ? -1 : device;
    const copy c = {.to = dst, .from = src, .n_bytes = count};
    if (!stream) return copy_now(&c);
    if (!host_lies_on(dst, count, to) || !host_lies_on(src, count, from)) {
        fprintf(stderr, "cuda on the host: a copy of %zu bytes from or to what is not there\n",
                count);
        return host_failed(cudaErrorInvalidValue);
    }
    return host_put_run(stream,
                        kind == cudaMemcpyHostToDevice   ? HOST_UP
                        : kind == cudaMemcpyDeviceToHost ? HOST_DOWN
                                                         : HOST_KERNEL,
                        run_copy, &c, sizeof c);
}

cudaError_t cudaMemsetAsync(void *devPtr, int value, size_t count, cudaStream_t stream)
{
    const copy c = {.to = devPtr, .value = value, .n_bytes = count};
    if (!stream) return copy_now(&c);
    if (!dh_host_on_device(devPtr, count)) return host_failed(cudaErrorInvalidValue);
    return dh_host_enqueue(stream, run_copy, &c, sizeof c);
}

/* ---- the process ----------------------------------------------------------------------------- */

static const struct {
    cudaError_t error;
    const char *name, *text;
} errors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined",
     "capturing stream has unjoined work"},
    {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation",
     "dependency created on uncaptured work in another stream"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
};

static size_t row_of(cudaError_t error)
{
    size_t i = 0;
    while (i + 1 < DH_COUNTOF(errors) && errors[i].error != error) i++;
    return i;
}

const char *cudaGetErrorName(cudaError_t error)
{
    return errors[row_of(error)].name;
}

const char *cudaGetErrorString(cudaError_t error)
{
    return errors[row_of(error)].text;
}

cudaError_t cudaGetLastError(void)
{
    const cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaRuntimeGetVersion(int *runtimeVersion)
{
    *runtimeVersion = 13000;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = has_old_driver ? 0 : n_devices;
    if (has_old_driver) return host_failed(cudaErrorInsufficientDriver);
    return n_devices > 0 ? cudaSuccess : host_failed(cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int wanted)
{
    if (wanted < 0 || wanted >= n_devices) return host_failed(cudaErrorInvalidDevice);
    device = wanted;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *current)
{
    *current = device;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int number)
{
    memset(prop, 0, sizeof *prop);
    snprintf(prop->name, sizeof prop->name, "threads of the host, number %d", number);
    memcpy(prop->uuid.bytes, &number, sizeof number);
    prop->major = 9;
    prop->multiProcessorCount = HOST_SMS;
    return cudaSuccess;
}

/* ---- for tests ------------------------------------------------------------------------------ */

void dh_host_set_devices(int n)
{
    DH_CHECK(n >= 0 && n <= MOST_DEVICES, "that many devices are not played");
    n_devices = n;
}

void dh_host_age_driver(void)
{
    has_old_driver = true;
}
