//! Runs the fuzzer's seeds and random changes of them, for the tests that run without the fuzzer.

use rand::RngExt;

/// The folder of the seeds, from the library's or the program's own.
fn folder() -> std::path::PathBuf {
    let package = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let here = package.join("fuzz/seeds");
    if here.exists() { here } else { package.join("../fuzz/seeds") }
}

/// Runs the seeds of a target, and 2,000 random changes of each.
pub(super) fn try_each(target: &str, run: fn(&[u8])) {
    let folder = folder().join(target);
    let mut random = rand::rng();
    let mut tried = 0;
    for seed in std::fs::read_dir(folder).unwrap() {
        let seed = std::fs::read(seed.unwrap().path()).unwrap();
        run(&seed);
        tried += 1;
        for _ in 0..2_000 {
            let mut data = seed.clone();
            for _ in 0..random.random_range(1..6) {
                let at = random.random_range(0..data.len());
                match random.random_range(0..4) {
                    0 => data[at] = random.random(),
                    1 => data.truncate(at.max(1)),
                    2 => data.insert(at, random.random()),
                    _ => data[at] ^= 1 << random.random_range(0..8),
                }
            }
            run(&data);
        }
    }
    assert!(tried > 0, "{target} has no seeds");
}
