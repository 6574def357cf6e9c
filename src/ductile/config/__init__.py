"""Configuration: from YAML files to one immutable `Snapshot`.

    path = find_config.find_config(named, environ)          the path of config.yaml
    loaded = load.load_config(path, environ)                read, verified, interpolated, decoded, validated
    discovery = plugins.discovery.discover(loaded.plugin_roots)     a package above this one
    snapshot = compile.compiler.compile_snapshot(loaded, discovery)

`read` turns files into one located tree, `schema` is the model and its decoder, `validate` has the rules
between keys, `compile` makes the snapshot. `seal` covers the files with checksums, `edit` changes keys and
tokens in them, `history` keeps earlier versions to compare and restore.

Importing this package imports none of its modules: the command line starts without YAML and msgspec.
"""
