-- Logins of browsers. The cookie itself is kept nowhere.
CREATE TABLE logins (
    digest    BLOB PRIMARY KEY NOT NULL,       -- SHA-256 of the cookie
    user      TEXT NOT NULL,
    created_s INTEGER NOT NULL,                -- since 1970
    seen_s    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
