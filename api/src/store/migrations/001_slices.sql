-- A tile's or a home's slice of ids. What is on disk carries these ids, so a row is never changed.
CREATE TABLE slices (
    tree  TEXT PRIMARY KEY NOT NULL,           -- apps/<tile> or homes/<user>
    first INTEGER NOT NULL UNIQUE              -- host id of the sandbox's root
) STRICT, WITHOUT ROWID;
