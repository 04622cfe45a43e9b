/* The CUDA runtime on the host, beyond CUDA's own interface: how kernels and cuBLASLt put work on
 * its streams, and questions for tests. C and C++. */
#ifndef DH_RUN_CUDA_HOST_HOST_H
#define DH_RUN_CUDA_HOST_HOST_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- work ----------------------------------------------------------------------------------- */

/* Puts run(user) after the stream's other work. n_bytes of user are copied.
 * errors    the calling thread's device is not the stream's */
cudaError_t dh_host_enqueue(cudaStream_t stream, void (*run)(const void *user), const void *user,
                            size_t n_bytes);
/* Whether [at, at + n_bytes) is memory of the calling thread's device. */
bool dh_host_on_device(const void *at, size_t n_bytes);

/* ---- for tests ------------------------------------------------------------------------------ */

/* Which work runs before anybody waits for it, and pauses; 1 unless told. */
void dh_host_seed_streams(uint64_t seed);
/* The n-th kernel from now on, counted from 1, fails where it runs; 0: none. */
void dh_host_fail_kernel(int64_t n);
/* The n-th kernel from now on takes this long. */
void dh_host_delay_kernel(int64_t n, int64_t ns);
/* The n-th call from now on that makes memory, a stream or an event fails; 0: none. */
void dh_host_fail_allocation(int64_t n);
/* Allocations, streams, events and communicators that are there. */
int64_t dh_host_n_objects(void);
/* maxCTAs of the communicator that was made last. */
int dh_host_last_ctas(void);
/* Whether it was to be sparing of them (NCCL_CTA_POLICY_EFFICIENCY). */
bool dh_host_last_spares(void);
/* Why the last communicator that did was ended, "" where none was; and forgets it. */
void dh_host_take_trouble(char text[200]);
/* From now on cuBLASLt knows of no product with GELU. */
void dh_host_lack_gelu(bool lacks);
/* How many devices there are, or none: 2 unless told. While none is in use. */
void dh_host_set_devices(int n);
/* From now on the driver is too old for this runtime. */
void dh_host_age_driver(void);

/* Arguments of the last cublasLtMatmul that was accepted: matrices by columns. */
typedef struct dh_host_product {
    bool trans_a, trans_b, bias;
    uint32_t epilogue;
    int64_t aux_ld;
    struct dh_host_matrix {
        int type; /* cudaDataType */
        uint64_t rows, cols;
        int64_t ld;
    } a, b, c, d;
    float beta;
    uint64_t workspace_bytes;
    int sms; /* that it is planned for; 0: all */
} dh_host_product;
dh_host_product dh_host_last_product(void);
/* Products so far that made GELU, or multiplied by its slope. */
int64_t dh_host_n_gelu(void);

#ifdef __cplusplus
}
#endif
#endif
