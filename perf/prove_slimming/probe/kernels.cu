// Kernels whose containers hold one kind of code each; KERNEL chooses which one this translation unit is.
// A kernel stores a number; its launcher returns CUDA's error, or 0 and the number.

#define PASTE2(a, b) a##b
#define PASTE(a, b) PASTE2(a, b)

#ifdef RELOCATABLE
extern __device__ int from_elsewhere(int);
#endif

__global__ void PASTE(KERNEL, _kernel)(int *result) {
#if defined(RELOCATABLE)
    *result = from_elsewhere(40);
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
    *result = 901;  // sm_90a
#elif defined(__CUDA_ARCH__)
    *result = __CUDA_ARCH__;
#endif
}

extern "C" int PASTE(launch_, KERNEL)(int *result) {
    int *on_device = nullptr;
    cudaError_t error = cudaMalloc(&on_device, sizeof(int));
    if (error != cudaSuccess) return 1000 + error;
    PASTE(KERNEL, _kernel)<<<1, 1>>>(on_device);
    error = cudaGetLastError();
    if (error == cudaSuccess) error = cudaMemcpy(result, on_device, sizeof(int), cudaMemcpyDeviceToHost);
    return error;
}
