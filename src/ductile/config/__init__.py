"""Configuration: from YAML files to one immutable `Snapshot`.

The way in, in the order of use:

    path = locate.locate_config(named, environ)          which config.yaml
    loaded = load.load_config(path, environ)             read, verified, interpolated, decoded, checked
    discovery = ...discover(loaded.plugin_roots)         `ductile.plugins`, which sits above this package
    snapshot = compile.compile_snapshot(loaded, discovery)

Beside it: `edit` (get and set a key), `integrity` (the seal), `schema` (JSON Schema), `secrets`
(what must not be shown). The values that discovery hands over are in `installed`.

Importing this package imports none of its modules: the command line starts without YAML and msgspec.
"""
