# Every image, and what is in it; those without a lock apart.
{
  product,
  gcc,
  openmpi,
}:

let
  sitePackages = "lib/python3.10/site-packages";
  nvidiaFolders = map (name: "${sitePackages}/nvidia/${name}/lib");
  tensorrtLlmFolders = [
    # TensorRT's.
    "lib"
    "${sitePackages}/tensorrt_llm/libs"
    "${sitePackages}/torch/lib"
  ];
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
      tensorrtLlmFolders
      ++ nvidiaFolders [
        "cublas"
        "cuda_nvrtc"
        "cuda_runtime"
        "cudnn"
        "nccl"
      ];
  };
  tensorrtLlmPytorch = tensorrtLlm // {
    engine = "engine-tensorrt-llm-pytorch";
    programs = [
      openmpi
      # As for vLLM.
      gcc
    ];
    libraryFolders =
      tensorrtLlmFolders
      ++ nvidiaFolders [
        "cu13"
        "cudnn"
        "nccl"
      ];
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

  # What only building an engine, linking, profiling or debugging needs, and what no kept architecture runs. vLLM
  # takes FlashAttention 3 on SM 90 and FlashAttention 2 elsewhere; Triton (the compiler) takes another ptxas from
  # SM 100 on.
  leftOut = builtins.fromJSON (builtins.readFile ./left-out.json);
  notForRunners = builtins.concatLists (builtins.attrValues leftOut.runners);
  notForSm = leftOut.sm;

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

  # NVIDIA's list of supported GPUs has none of SM 86.
  pytorchRunners = runners "cog-triton-runner-tensorrt-llm-pytorch" tensorrtLlmPytorch [
    "80"
    "89"
    "90"
    "100"
    "103"
    "120"
  ];
  isLocked = builtins.pathExists (./locks + "/${tensorrtLlmPytorch.engine}.json");
  makeLock = "nix run .#lock -- tensorrt-llm-pytorch 1.2.1 && git add nix/locks";
  refuse = { name, ... }: {
    inherit name;
    value = throw "${name} has no lock yet: make it in a checkout by `${makeLock}`";
  };
in
{
  withoutLock = if isLocked then { } else builtins.listToAttrs (map refuse pytorchRunners);
  images = builtins.listToAttrs (
    (if isLocked then pytorchRunners else [ ])
    ++ runners "cog-triton-runner" tensorrtLlm [
      "80"
      "86"
      "89"
      "90"
    ]
    ++ runners "cog-triton-runner-vllm" vllm [
      "80"
      "86"
      "89"
      "90"
      "100"
      "103"
      "120"
    ]
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
  );
}
