// The other half of a relocatable program.
__device__ int from_elsewhere(int x) { return x + 4; }
