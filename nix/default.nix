# Everything that nix/ has, each file given what it asks for by name: of nixpkgs, or of what stands here.
{
  pkgs,
  # The commit, or "dirty".
  revision,
  # Its time, as YYYYMMDDhhmmss.
  date,
}:

let
  scope = pkgs // ours;
  call =
    file:
    let
      function = import file;
    in
    function (builtins.intersectAttrs (builtins.functionArgs function) scope);
  part = start: length: builtins.substring start length date;

  ours = {
    inherit revision;
    # In RFC 3339.
    created = "${part 0 4}-${part 4 2}-${part 6 2}T${part 8 2}:${part 10 2}:${part 12 2}Z";
    pythons = {
      "3.10" = pkgs.python310;
      "3.11" = pkgs.python311;
    };
    wheel = call ./wheel.nix;
    environment = call ./environment.nix;
    layer = call ./layer.nix;
    base = call ./base.nix;
    code = call ./code.nix;
    labels = call ./labels.nix;
    image = call ./image.nix;
    sbom = call ./sbom.nix;
    product = call ./product.nix;
    inherit (call ./images.nix) images withoutLock;
    librariesFound = call ./libraries-found.nix;
    lockApp = call ./lock-app.nix;
    shell = call ./shell.nix;
    checks = call ./checks.nix;
  };
in
ours
