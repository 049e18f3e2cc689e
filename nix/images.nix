# Every image, and what is in it.
{ product }:

{
  cog-triton-runner-cpu = product {
    name = "cog-triton-runner-cpu";
    kind = "runner";
    engine = "engine-transformers-cpu";
  };
  cog-triton-builder-cpu = product {
    name = "cog-triton-builder-cpu";
    kind = "builder";
    engine = "engine-transformers-cpu";
  };
}
