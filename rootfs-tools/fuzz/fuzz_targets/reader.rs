//! Any bytes: the reader says what is wrong with them, and never more than that.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    drop(casemate_rootfs::read_archive(bytes));
});
