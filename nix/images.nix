# Every image, and what is in it.
{
  product,
  gcc,
  openmpi,
}:

let
  tensorrtLlm = {
    engine = "engine-tensorrt-llm";
    gpu = true;
    # TensorRT-LLM starts MPI even for one GPU.
    libraries = [ openmpi ];
    programs = [ openmpi ];
    # Not checked: NVIDIA's files could not be inspected.
    absent = [ "*" ];
    # The package on PyPI has all of the module but its name.
    aliases.tensorrt = "tensorrt_bindings";
    libraryFolders =
      let
        sitePackages = "lib/python3.10/site-packages";
        nvidia = map (name: "${sitePackages}/nvidia/${name}/lib") [
          "cublas"
          "cuda_nvrtc"
          "cuda_runtime"
          "cudnn"
          "nccl"
        ];
      in
      [
        # TensorRT's.
        "lib"
        "${sitePackages}/tensorrt_llm/libs"
        "${sitePackages}/torch/lib"
      ]
      ++ nvidia;
  };
  vllm = {
    engine = "engine-vllm";
    gpu = true;
    # Triton (the compiler) builds the launchers of its kernels when it first runs.
    programs = [ gcc ];
    absent = [
      "libcuda.so.1"
      # Of clusters' networks, and a threading library that numba can do without.
      "libfabric.so.*"
      "libibverbs.so.*"
      "libmlx5.so.*"
      "libmpi.so.*"
      "liboshmem.so.*"
      "libpmix.so.*"
      "librdmacm.so.*"
      "libtbb.so.*"
      "libuc[ps].so.*"
    ];
    variables = {
      # The default needs flashinfer, which compiles CUDA when it runs.
      VLLM_USE_FLASHINFER_SAMPLER = "0";
      VLLM_NO_USAGE_STATS = "1";
      DO_NOT_TRACK = "1";
    };
  };
  transformersCpu = {
    engine = "engine-transformers-cpu";
  };

  # What only building an engine, linking, profiling or debugging needs, and what no kept architecture runs.
  notForRunners = map (path: "lib/python3.*/site-packages/${path}") [
    # CUDA: profiling, code for linkers, a second build of the run-time compiler, solvers over several GPUs.
    "nvidia/*/lib/libcheckpoint.so*"
    "nvidia/*/lib/libcusolverMg.so*"
    "nvidia/*/lib/libnvperf_*.so*"
    "nvidia/*/lib/libnvrtc*.alt.so*"
    "nvidia/*/lib/libpcsamplingutil.so*"
    "nvidia/nvshmem/lib/*.bc"
    "nvidia/*/include/*"
    # PyTorch and Triton (the compiler, which has a ptxas of its own): for building extensions, disassembling,
    # profiling, SM 100.
    "torch/bin/protoc*"
    "torch/bin/ptxas"
    "torch/bin/test_*"
    "torch/include/*"
    "triton/FileCheck"
    "triton/backends/nvidia/bin/cuobjdump"
    "triton/backends/nvidia/bin/nvdisasm"
    "triton/backends/nvidia/bin/ptxas-blackwell"
    "triton/backends/nvidia/lib/cupti/*"
    "triton/instrumentation/*"
    # vLLM: a front end of its own, kernels that want a CUDA compiler when they run, and kernels for SM 100.
    "vllm/third_party/deep_gemm/*"
    "vllm/third_party/fmha_sm100/*"
    "vllm/vllm-rs"
    # vLLM does without them: it reads videos by the one, and measures by the other.
    "cv2/*"
    "opencv_python_headless*"
    "cudnn/*"
    "nvidia_cudnn_frontend*"
    # One model of hundreds is loaded: its byte code is made then.
    "transformers/models/*/__pycache__/*"
    # Tests of packages.
    "networkx/*/tests/*"
    "numba/tests/*"
    "numpy/*/tests/*"
    "sympy/*/tests/*"
  ]
  ++ [
    "*.a"
    "lib/libnvinfer_builder_resource*"
  ];
  # vLLM takes FlashAttention 3 on SM 90 and FlashAttention 2 below.
  notForSm = {
    "80" = [ "*/vllm_flash_attn/_vllm_fa3_C.abi3.so" ];
    "86" = [ "*/vllm_flash_attn/_vllm_fa3_C.abi3.so" ];
    "90" = [ "*/vllm_flash_attn/_vllm_fa2_C.abi3.so" ];
  };

  image = attributes: {
    inherit (attributes) name;
    # `unslimmed` is the same image with all that a runner leaves out, to compare it with.
    value = product attributes // {
      unslimmed = product (
        builtins.removeAttrs attributes [
          "sm"
          "leaveOut"
        ]
      );
    };
  };
  runners =
    name: engine: sms:
    map (
      sm:
      image (
        engine
        // {
          name = "${name}-${sm}";
          kind = "runner";
          inherit sm;
          leaveOut = notForRunners ++ notForSm.${sm};
        }
      )
    ) sms;
  architectures = [
    "80"
    "86"
    "90"
  ];
in
builtins.listToAttrs (
  runners "cog-triton-runner" tensorrtLlm architectures
  ++ runners "cog-triton-runner-vllm" vllm architectures
  ++ [
    (image (
      tensorrtLlm
      // {
        name = "cog-triton-builder";
        kind = "builder";
      }
    ))
    (image (
      transformersCpu
      // {
        name = "cog-triton-builder-cpu";
        kind = "builder";
      }
    ))
    (image (
      transformersCpu
      // {
        name = "cog-triton-runner-cpu";
        kind = "runner";
      }
    ))
  ]
)
