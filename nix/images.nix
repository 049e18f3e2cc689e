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
    # Not checked: nobody here could look into NVIDIA's files.
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

  # What only compiling, profiling or building an engine needs.
  forBuildersOnly = [
    "*.a"
    "lib/libnvinfer_builder_resource*"
    "lib/python3.*/site-packages/triton/backends/nvidia/lib/cupti/*"
    "lib/python3.*/site-packages/triton/instrumentation/*"
  ];

  image = attributes: {
    inherit (attributes) name;
    value = product attributes;
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
          leaveOut = forBuildersOnly;
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
