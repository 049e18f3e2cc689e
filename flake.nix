{
  description = "cog-triton: from an LLM's weights to a fast, reliable token stream";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/979daf34c8cacebcd917d540070b52a3c2b9b16e";

  outputs =
    { self, nixpkgs }:
    let
      system = "x86_64-linux";
      pkgs = nixpkgs.legacyPackages.${system};
      ours = import ./nix {
        inherit pkgs;
        revision = self.rev or "dirty";
        # Seconds since 1970, of the commit.
        lastModified = self.lastModified or 0;
      };
    in
    {
      packages.${system} = ours.images // {
        default = ours.images.cog-triton-runner-cpu;
      };
    };
}
