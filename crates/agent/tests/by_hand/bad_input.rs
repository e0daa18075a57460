//! What is asked for and not there: it is said while the disks are as they were.

use crate::{Bench, agent};

#[test]
fn an_image_that_nobody_has_is_said_before_anything_is_written() {
    let bench = Bench::new(512);
    let before = bench.digest();
    let document = bench.document(&[]);
    for verb in ["plan", "apply"] {
        let ended = agent(verb, &document, &[]);
        assert_eq!(ended.code, 3, "{}", ended.err);
        let said = "images.root.sources: `file://";
        assert!(ended.err.contains(said) && ended.err.contains("[unreachable]"), "{}", ended.err);
    }
    assert_eq!(bench.digest(), before);
    // What was written is not asked for again.
    bench.pack_image();
    let ended = agent("apply", &document, &[]);
    assert_eq!(ended.code, 0, "{}", ended.err);
    fs_err::remove_file(bench.path("root.img.zst")).expect("it was there");
    let ended = agent("verify", &document, &[]);
    assert_eq!(ended.code, 0, "{}", ended.err);
}
