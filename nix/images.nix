# Every image, and what is in it.
{
  product,
  gcc,
  openmpi,
}:

let
  tensorrtLlm = {
    engine = "engine-tensorrt-llm";
    # TensorRT-LLM starts MPI even for one GPU.
    libraries = [ openmpi ];
    programs = [ openmpi ];
  };
  vllm = {
    engine = "engine-vllm";
    # Triton (the compiler) builds the launchers of its kernels when it first runs.
    programs = [ gcc ];
  };
  transformersCpu = {
    engine = "engine-transformers-cpu";
  };

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
