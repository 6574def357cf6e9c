-- Why a configuration was loaded: the command, its author, and the id of the files.
ALTER TABLE config_snapshots ADD COLUMN command TEXT COLLATE "C";
ALTER TABLE config_snapshots ADD COLUMN author TEXT COLLATE "C";
ALTER TABLE config_snapshots ADD COLUMN files TEXT COLLATE "C";
