use super::*;

const BLOCK: IdBlock = IdBlock {
    first: 1 << 20,
    slices: 4,
};

fn open(directory: &tempfile::TempDir) -> Store {
    let path = directory.path().join("casemate.db");
    std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        .unwrap();
    Store::open_at(&path).unwrap()
}

fn tile(name: &str) -> TileId {
    TileId::parse(name).unwrap()
}

#[test]
fn a_slice_is_given_once_and_survives_reopening() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory);
    let a = store.slice(Tree::Tile(&tile("apps/a")), BLOCK).unwrap();
    let user = UserId::parse("owner").unwrap();
    let home = store.slice(Tree::Home(&user), BLOCK).unwrap();
    assert_eq!(a.first(), BLOCK.first);
    assert_eq!(home.first(), BLOCK.first + Slice::LEN);
    drop(store);
    let store = open(&directory);
    assert_eq!(store.slice(Tree::Tile(&tile("apps/a")), BLOCK).unwrap(), a);
    let error = store.slice(Tree::Tile(&tile("apps/b")), BLOCK).unwrap_err();
    assert!(matches!(error, StoreError::NoSlice { .. }), "{error}");
}

#[test]
fn a_slice_outside_the_present_block_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory);
    store.slice(Tree::Tile(&tile("apps/a")), BLOCK).unwrap();
    let moved = IdBlock {
        first: BLOCK.first * 2,
        ..BLOCK
    };
    let error = store.slice(Tree::Tile(&tile("apps/a")), moved).unwrap_err();
    assert!(matches!(error, StoreError::SliceOutside { .. }), "{error}");
}

#[test]
fn concurrent_processes_never_share_a_slice() {
    let directory = tempfile::tempdir().unwrap();
    drop(open(&directory));
    let block = IdBlock {
        slices: 64,
        ..BLOCK
    };
    let firsts: Vec<u32> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                let directory = &directory;
                scope.spawn(move || {
                    let store = open(directory);
                    (0..8)
                        .map(|n| {
                            let tile = tile(&format!("apps/t{thread}-{n}"));
                            store.slice(Tree::Tile(&tile), block).unwrap().first()
                        })
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        threads
            .into_iter()
            .flat_map(|t| t.join().unwrap())
            .collect()
    });
    let distinct: std::collections::HashSet<_> = firsts.iter().collect();
    assert_eq!(distinct.len(), 32);
}

#[test]
fn a_newer_or_foreign_database_is_refused_and_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    drop(open(&directory));
    let path = directory.path().join("casemate.db");
    let set = |name: &str, value: u32| {
        let connection = Connection::open(&path).unwrap();
        connection.pragma_update(None, name, value).unwrap();
    };
    let known = u32::try_from(MIGRATIONS.len()).unwrap();
    set("user_version", known + 1);
    let error = Store::open_at(&path).unwrap_err();
    assert!(matches!(error, StoreError::Newer { .. }), "{error}");
    set("user_version", known);
    set("application_id", 7);
    let error = Store::open_at(&path).unwrap_err();
    assert!(matches!(error, StoreError::Foreign), "{error}");
}

#[test]
fn a_failed_transaction_has_no_effect() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory);
    store
        .transaction("test", |transaction| {
            transaction.execute("INSERT INTO slices VALUES ('x', 1)", [])?;
            transaction.execute("INSERT INTO slices VALUES ('x', 2)", [])
        })
        .unwrap_err();
    let rows: u32 = store
        .transaction("test", |transaction| {
            transaction.query_row("SELECT count(*) FROM slices", [], |row| row.get(0))
        })
        .unwrap();
    assert_eq!(rows, 0);
}
