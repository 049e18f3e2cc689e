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
        date = self.lastModifiedDate or "19700101000000";
      };
    in
    {
      packages.${system} = ours.images // {
        default = ours.images.cog-triton-runner-cpu;
      };

      # `nix build` of one of these tells how to make its lock; `nix flake check` leaves them alone.
      legacyPackages.${system} = ours.withoutLock;

      # Renews a lock: nix run .#lock -- tensorrt-llm 0.16.0
      apps.${system}.lock = {
        type = "app";
        program = "${ours.lockApp}/bin/lock";
        meta.description = "Renew a lock of nix/locks";
      };

      devShells.${system}.default = ours.shell;
      checks.${system} = ours.checks;
      formatter.${system} = pkgs.nixfmt-tree;
    };
}
