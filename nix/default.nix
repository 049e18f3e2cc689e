# Everything that nix/ has, each file given what it asks for by name: of nixpkgs, or of what stands here.
{
  pkgs,
  # The commit, or "dirty".
  revision,
  # Its time, in seconds since 1970.
  lastModified,
}:

let
  scope = pkgs // ours;
  call =
    file:
    let
      function = import file;
    in
    function (builtins.intersectAttrs (builtins.functionArgs function) scope);

  ours = {
    inherit revision lastModified;
    pythons = {
      "3.10" = pkgs.python310;
      "3.11" = pkgs.python311;
    };
    wheel = call ./wheel.nix;
    environment = call ./environment.nix;
    layer = call ./layer.nix;
    image = call ./image.nix;
    base = call ./base.nix;
    code = call ./code.nix;
    product = call ./product.nix;
    images = call ./images.nix;
  };
in
ours
