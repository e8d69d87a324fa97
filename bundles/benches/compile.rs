//! P6: time of compile and verify, with 10 and with 1,000 visible tiles. Least and median, in microseconds.

#[path = "../tests/fixtures/mod.rs"]
mod fixtures;

use std::hint::black_box;
use std::time::Instant;

use casemate_bundles::{Profile, Slice, TileId, TreeOwner, compile, verify};

const RUNS: usize = 301;

fn case(tiles: u32) -> Result<fixtures::Case, fixtures::Error> {
    let mut case = fixtures::find("terminal-restricted-none")?;
    if let Profile::Terminal { view, .. } = &mut case.plan.profile {
        view.readable.clear();
        for n in 1..tiles {
            view.readable.push(TreeOwner {
                id: TileId::parse(format!("apps/tile-{n}"))?,
                slice: Slice::parse((1000 + n) * 65_536)?,
            });
        }
    }
    Ok(case)
}

/// Least and median time of a call.
fn times(mut run: impl FnMut()) -> (f64, f64) {
    let mut times: Vec<f64> = (0..RUNS)
        .map(|_| {
            let start = Instant::now();
            run();
            start.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    times.sort_by(f64::total_cmp);
    let at = |index: usize| times.get(index).copied().unwrap_or(f64::NAN);
    (at(0), at(RUNS / 2))
}

#[expect(clippy::print_stdout, reason = "what a benchmark is for")]
fn main() -> Result<(), fixtures::Error> {
    let host = fixtures::host();
    for (tiles, target) in [(10, 100.0), (1000, 1000.0)] {
        let case = case(tiles)?;
        let bundle = compile(&case.plan, &case.placement, &host)?;
        verify(&bundle, &case.plan, &case.placement, &host)?;
        let compiled = times(|| {
            drop(black_box(compile(&case.plan, &case.placement, &host)));
        });
        let verified = times(|| {
            drop(black_box(verify(
                &bundle,
                &case.plan,
                &case.placement,
                &host,
            )));
        });
        println!(
            "p6 tiles={tiles} compile_us={:.1}/{:.1} verify_us={:.1}/{:.1} sum_us={:.1}/{:.1} \
             target_us={target:.0} bytes={}",
            compiled.0,
            compiled.1,
            verified.0,
            verified.1,
            compiled.0 + verified.0,
            compiled.1 + verified.1,
            bundle.config.len() + bundle.guard.len() + bundle.stage.len(),
        );
    }
    Ok(())
}
