//! A row's result does not depend on the chunk it is in, nor on the height of its tile: the same bits come out when the
//! rows of a chunk are run in several smaller ones.

use super::*;
use std::ops::Range;

/// How 70 rows are cut: tiles of every height, a single row, and everything at once.
const CUTS: [&[u32]; 3] = [&[0, 70], &[0, 1, 17, 40, 70], &[0, 32, 33, 65, 70]];
const ALL: u32 = 70;

/// Random bf16 as bytes.
fn numbers(seed: u64, count: u32, scale: f32) -> Vec<u8> {
    let mut c = Case::new(seed);
    c.bf16(count, scale);
    c.contents.pop().unwrap().1
}

/// Rows `rows` of an array with so many bytes a row.
fn cut(bytes: &[u8], row_bytes: u32, rows: &Range<u32>) -> Vec<u8> {
    bytes[(rows.start * row_bytes) as usize..(rows.end * row_bytes) as usize].to_vec()
}

/// Runs `outputs` on every piece of every cut, and compares the outputs of the pieces, put together, between the cuts.
/// `outputs` gets what the piece before it left behind besides its rows, and hands that on.
fn compare_cuts(
    device: &dyn Runs,
    what: &str,
    outputs: impl Fn(&Run, Range<u32>, Option<Vec<Vec<u8>>>) -> (Vec<Vec<u8>>, Vec<Vec<u8>>),
) {
    for (way, run) in device.ways() {
        let whole = |points: &[u32]| {
            let mut rows: Vec<Vec<u8>> = Vec::new();
            let mut left = None;
            for ends in points.windows(2) {
                let (own, next) = outputs(&run, ends[0]..ends[1], left);
                rows.resize(own.len(), Vec::new());
                rows.iter_mut().zip(&own).for_each(|(all, part)| all.extend(part));
                left = Some(next);
            }
            (rows, left)
        };
        let want = whole(CUTS[0]);
        for points in &CUTS[1..] {
            assert!(whole(points) == want, "{what} {way}: rows cut at {points:?} have other bits");
        }
    }
}

pub fn products_do_not_depend_on_the_chunk(device: &dyn Runs) {
    for (cols, outputs, format) in [(192, 77, Q4), (64, 64, PLAIN)] {
        let (x, h) = (numbers(40, ALL * cols, 1.0), numbers(41, ALL * outputs, 1.0));
        compare_cuts(device, "matmul_add", |run, rows, _| {
            let mut c = Case::new(42);
            let m = c.matrix(outputs, cols, format);
            let kernel = MatMulAdd {
                args: MatMulAddArgs {
                    rows: rows.len() as u32,
                    cols,
                    outputs,
                    format: m.format,
                    tile_rows: device.tile_heights()[rows.len() % 3],
                },
                x: c.bytes(cut(&x, 2 * cols, &rows)),
                codes: m.codes,
                scales: m.scales,
                biases: m.biases,
                h: c.bytes(cut(&h, 2 * outputs, &rows)),
            };
            (run(&c, &kernel.dispatch()), Vec::new())
        });
    }
}

pub fn router_does_not_depend_on_the_chunk(device: &dyn Runs) {
    let x = numbers(43, ALL * 128, 2.0);
    compare_cuts(device, "router", |run, rows, _| {
        let mut c = Case::new(44);
        let (router, shared) = (c.matrix(11, 128, Q8), c.matrix(1, 128, Q8));
        let count = rows.len() as u32;
        let kernel = Router {
            args: RouterArgs { dims: moe::moe_dims(count), router_format: router.format, shared_format: shared.format },
            x: c.bytes(cut(&x, 256, &rows)),
            router_codes: router.codes,
            router_scales: router.scales,
            router_biases: router.biases,
            shared_codes: shared.codes,
            shared_scales: shared.scales,
            shared_biases: shared.biases,
            logits: c.poison(4 * count * 11),
            shared: c.poison(4 * count),
        };
        (run(&c, &kernel.dispatch()), Vec::new())
    });
}

pub fn experts_do_not_depend_on_the_chunk_or_tile(device: &dyn Runs) {
    let x = numbers(45, ALL * 128, 1.0);
    // The rows of `y` are assignments, those of a token neighbours: the chunks' outputs join as they are.
    let experts = |run: &Run, rows: Range<u32>, tile_rows: u32| {
        let (count, mut c) = (rows.len() as u32, Case::new(46));
        let dims = moe::moe_dims(count);
        let (gate, up) = (c.matrix(11 * 96, 128, Q4), c.matrix(11 * 96, 128, Q8));
        let chosen = |a: u32| match rows.start * 3 + a {
            a if a % 4 != 0 => 7,
            a => a * 5 % 11,
        };
        let (offsets, order, tiles) = moe::grouping(&mut c, count, tile_rows, chosen);
        let kernel = ExpertGateUp {
            args: ExpertGateUpArgs { dims, gate_format: gate.format, up_format: up.format, stride_rows: 96, tile_rows },
            x: c.bytes(cut(&x, 256, &rows)),
            offsets,
            order,
            tiles,
            gate_codes: gate.codes,
            gate_scales: gate.scales,
            gate_biases: gate.biases,
            up_codes: up.codes,
            up_scales: up.scales,
            up_biases: up.biases,
            y: c.poison(2 * count * 3 * 96),
        };
        let act = run(&c, &kernel.dispatch()).remove(0);
        let mut c = Case::new(47);
        let down = c.matrix(11 * 128, 96, Q8);
        let (offsets, order, tiles) = moe::grouping(&mut c, count, tile_rows, chosen);
        let kernel = ExpertDown {
            args: ExpertDownArgs { dims, format: down.format, stride_rows: 128, tile_rows },
            act: c.bytes(act),
            offsets,
            order,
            tiles,
            codes: down.codes,
            scales: down.scales,
            biases: down.biases,
            y: c.poison(2 * count * 3 * 128),
        };
        run(&c, &kernel.dispatch())
    };
    compare_cuts(device, "experts", |run, rows, _| {
        let tile_rows = device.tile_heights()[rows.len() % 3].min(64);
        (experts(run, rows, tile_rows), Vec::new())
    });
    for (way, run) in device.ways() {
        let [low, middle, high] = device.tile_heights().map(|tile_rows| experts(&run, 0..ALL, tile_rows.min(64)));
        assert!(low == middle && middle == high, "experts {way}: the height of tiles changes bits");
    }
}

pub fn attention_does_not_depend_on_the_chunk(device: &dyn Runs) {
    const POSITION: u32 = 23;
    let segments = Segments { count: 3, keys: 64 };
    let dims = |rows| AttentionDims { rows, heads: 6, kv_heads: 2, head_dim: 64, rotary_dim: 32, eps: 1e-6 };
    let (q, q_raw) = (numbers(48, ALL * 384, 4.0), numbers(49, ALL * 768, 2.0));
    let (keys, values) = (numbers(50, (POSITION + ALL) * 128, 2.0), numbers(51, (POSITION + ALL) * 128, 1.0));
    let partials_bytes = segments.partials_bytes(&dims(1)) as u32;
    compare_cuts(device, "attend", |run, rows, _| {
        let (count, mut c) = (rows.len() as u32, Case::new(52));
        let (dims, step) = (dims(count), [POSITION + rows.start, 0]);
        let kernel = Attend {
            args: AttendArgs { dims, segments },
            step: c.u32(&step),
            q: c.bytes(cut(&q, 768, &rows)),
            q_raw: c.bytes(cut(&q_raw, 1536, &rows)),
            keys: c.bytes(keys.clone()),
            values: c.bytes(values.clone()),
            partials: c.poison(count * partials_bytes),
            out: c.poison(2 * count * 384),
        };
        let mut attended = run(&c, &kernel.dispatch()).into_iter();
        let mut next = || attended.next().expect("partial results, and the output");
        let mut c = Case::new(60);
        let kernel = MergeSegments {
            args: MergeSegmentsArgs { dims, segments },
            step: c.u32(&step),
            q_raw: c.bytes(cut(&q_raw, 1536, &rows)),
            partials: c.bytes(next()),
            out: c.bytes(next()),
        };
        (run(&c, &kernel.dispatch()), Vec::new())
    });
}

pub fn delta_does_not_depend_on_the_chunk(device: &dyn Runs) {
    let dims = |rows| delta::delta_dims(rows);
    let channels = dims(1).channels() as u32;
    let (qkv, a, b) = (numbers(53, ALL * channels, 2.0), numbers(54, ALL * 4, 8.0), numbers(55, ALL * 4, 4.0));
    let (window, state) = (numbers(56, 3 * channels, 2.0).repeat(2), vec![0; 4 * 4 * 96 * 64]);
    compare_cuts(device, "delta", |run, rows, left| {
        let (count, mut c) = (rows.len() as u32, Case::new(57));
        let left = left.unwrap_or_else(|| vec![window.clone(), state.clone()]);
        let half = rows.start % 2;
        let kernel = DeltaPrep {
            args: DeltaPrepArgs { dims: dims(count) },
            taps: c.f32(4 * channels, -0.6, 0.6),
            a_log: c.f32(4, -1.0, 2.5),
            dt_bias: c.f32(4, -6.0, 1.0),
            step: c.u32(&[rows.start, half]),
            qkv: c.bytes(cut(&qkv, 2 * channels, &rows)),
            a: c.bytes(cut(&a, 8, &rows)),
            b: c.bytes(cut(&b, 8, &rows)),
            window: c.bytes(left[0].clone()),
            q: c.poison(2 * count * 128),
            k: c.poison(2 * count * 128),
            v: c.poison(2 * count * 384),
            decay: c.poison(4 * count * 4),
            beta: c.poison(4 * count * 4),
        };
        let mut prepared = run(&c, &kernel.dispatch());
        let window = prepared.remove(0);
        let mut c = Case::new(58);
        let [q, k, v, decay, beta] = [0, 1, 2, 3, 4].map(|i| c.bytes(prepared[i].clone()));
        let kernel = DeltaScan {
            args: DeltaScanArgs { dims: dims(count), block_rows: 0 },
            q,
            k,
            v,
            decay,
            beta,
            state: c.bytes(left[1].clone()),
            y: c.poison(2 * count * 384),
        };
        let mut scanned = run(&c, &kernel.dispatch());
        let state = scanned.remove(0);
        prepared.push(scanned.remove(0));
        // Both halves become the new past, so that cuts into an odd and an even number of chunks compare.
        let past = window.len() / 2;
        let kept = window[past * (1 - half) as usize..][..past].repeat(2);
        (prepared, vec![kept, state])
    });
}
