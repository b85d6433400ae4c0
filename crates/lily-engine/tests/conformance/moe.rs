//! Mixture of experts.

use super::*;

pub fn moe_dims(rows: u32) -> MoeDims {
    MoeDims { rows, width: 128, experts: 11, top_k: 3, expert_width: 96, shared_width: 64, eps: 1e-6 }
}

/// The router of a chunk, and that of a decode step with the chunk's first row.
fn routers(device: &dyn Runs, dims: MoeDims, formats: (Format, Format)) {
    let mut c = Case::new(17);
    let MoeDims { rows, width, experts, .. } = dims;
    let (router, shared) = (c.matrix(experts, width, formats.0), c.matrix(1, width, formats.1));
    let (router_format, shared_format) = (router.format, shared.format);
    let x = c.bf16(rows * width, 2.0);
    let label = format!("{dims:?}, {formats:?}");
    let kernel = Router {
        args: RouterArgs { dims, router_format, shared_format },
        x,
        router_codes: router.codes,
        router_scales: router.scales,
        router_biases: router.biases,
        shared_codes: shared.codes,
        shared_scales: shared.scales,
        shared_biases: shared.biases,
        logits: c.poison(4 * rows * experts),
        shared: c.poison(4 * rows),
    };
    let step = RouterStep {
        args: RouterStepArgs { dims: MoeDims { rows: 1, ..dims }, router_format, shared_format },
        h: x.first(2 * width as usize),
        gain: c.f32(width, 0.5, 1.5),
        router_codes: router.codes,
        router_scales: router.scales,
        router_biases: router.biases,
        shared_codes: shared.codes,
        shared_scales: shared.scales,
        shared_biases: shared.biases,
        logits: c.poison(4 * experts),
        shared: c.poison(4),
    };
    c.copy().check(kernel.dispatch(), &label, device);
    c.check(step.dispatch(), &label, device);
}

pub fn router_and_router_step(device: &dyn Runs) {
    for (rows, formats) in ROWS.into_iter().zip([(Q8, Q8), (PLAIN, Q8), (Q4, PLAIN)].into_iter().cycle()) {
        routers(device, moe_dims(rows), formats);
    }
    // What a GPU takes at a time of rows and experts: all of it, some of it, and several times of it.
    let wide = Format::Affine { bits: 8, group: 64, scale: Float::Bf16 };
    for (i, format) in [wide].into_iter().chain(RARE).enumerate() {
        let (rows, experts, width) = [(35, 70, 384), (3, 64, 256), (6, 68, 128)][i % 3];
        routers(device, MoeDims { experts, width, ..moe_dims(rows) }, (format, Q8));
    }
}

/// Logits of a router for a [`choose`].
#[derive(Clone, Copy, Debug)]
enum Logits {
    /// Between minus and plus this.
    Upto(f32),
    /// So many different values: ties everywhere.
    Levels(u32),
}

fn choose(device: &dyn Runs, dims: MoeDims, logits: Logits) {
    let mut c = Case::new(18);
    let count = dims.rows * dims.experts;
    let label = format!("{logits:?}, {dims:?}");
    let logits = match logits {
        Logits::Upto(most) => c.f32(count, -most, most),
        Logits::Levels(levels) => {
            let values: Vec<f32> = (0..count).map(|_| (c.next() % levels) as f32).collect();
            c.bytes(bytemuck::cast_slice(&values).to_vec())
        }
    };
    let assignments = dims.assignments() as u32;
    let (experts, scores) = (c.poison(4 * assignments), c.poison(4 * assignments));
    let kernel = Route { args: RouteArgs { dims }, logits, experts, scores };
    c.check(kernel.dispatch(), &label, device);
}

fn group(device: &dyn Runs, dims: MoeDims, tile_rows: u32, skewed: bool) {
    let mut c = Case::new(19);
    let pick = |random: u32, i: u32| match skewed {
        true => (dims.experts - 1).saturating_sub(u32::from(i.is_multiple_of(13))),
        false => random % dims.experts,
    };
    let ids: Vec<u32> = (0..dims.assignments() as u32).map(|i| pick(c.next(), i)).collect();
    let kernel = GroupRows {
        args: GroupRowsArgs { dims, tile_rows },
        experts: c.u32(&ids),
        offsets: c.poison(4 * (dims.experts + 1)),
        order: c.poison(4 * dims.assignments() as u32),
        // What marks an unused tile is the poison's pattern, so this starts as something else.
        tiles: c.bytes(vec![0x55; 8 * dims.tiles(tile_rows) as usize]),
    };
    c.check(kernel.dispatch(), &format!("tiles of {tile_rows}, skewed {skewed}, {dims:?}"), device);
}

pub fn route_and_group_rows(device: &dyn Runs) {
    for rows in MANY_ROWS {
        choose(device, moe_dims(rows), if rows % 4 == 3 { Logits::Levels(3) } else { Logits::Upto(4.0) });
        group(device, moe_dims(rows), [16, 32, 64][rows as usize % 3], rows % 2 == 0);
    }
    for (experts, top_k) in [(1, 1), (31, 16), (33, 8), (256, 8), (512, 10)] {
        let dims = MoeDims { experts, top_k, ..moe_dims(41) };
        [Logits::Levels(4), Logits::Upto(4.0), Logits::Upto(1e30)]
            .into_iter()
            .for_each(|logits| choose(device, dims, logits));
        [true, false].into_iter().for_each(|skewed| group(device, dims, 16, skewed));
    }
}

pub fn route_breaks_ties_towards_the_lowest_expert(device: &dyn Runs) {
    let mut c = Case::new(20);
    let logits = [0.0_f32, 2.0, 1.0, 2.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0];
    let kernel = Route {
        args: RouteArgs { dims: moe_dims(1) },
        logits: c.bytes(bytemuck::cast_slice(&logits).to_vec()),
        experts: c.poison(12),
        scores: c.poison(12),
    };
    for (way, run) in device.ways() {
        assert_eq!(run(&c, &kernel.dispatch())[0], bytemuck::cast_slice::<u32, u8>(&[1, 3, 2]), "{way}");
    }
}

/// Assignments of `rows` tokens sorted by expert, where assignment `i` is to `expert(i)`.
pub fn grouping(c: &mut Case, rows: u32, tile_rows: u32, expert: impl Fn(u32) -> u32) -> (Slot, Slot, Slot) {
    let experts: Vec<u32> = (0..rows * 3).map(expert).collect();
    let mut order: Vec<u32> = (0..rows * 3).collect();
    order.sort_by_key(|&a| experts[a as usize]);
    let offsets: Vec<u32> = (0..12).map(|e| experts.iter().filter(|&&x| x < e).count() as u32).collect();
    let mut tiles: Vec<u32> = Vec::new();
    for (expert, span) in offsets.windows(2).enumerate() {
        tiles.extend((span[0]..span[1]).step_by(tile_rows as usize).flat_map(|first| [expert as u32, first]));
    }
    tiles.resize(2 * moe_dims(rows).tiles(tile_rows) as usize, NO_TILE);
    (c.u32(&offsets), c.u32(&order), c.u32(&tiles))
}

/// Experts evenly, or all on one and its neighbour.
fn assignment(skewed: bool) -> impl Fn(u32) -> u32 {
    move |i| if skewed { 4 + u32::from(i % 7 == 0) } else { i * 5 % 11 }
}

pub fn expert_gate_up_and_down(device: &dyn Runs) {
    for (i, rows) in ROWS.into_iter().chain([129]).enumerate() {
        let formats = [(Q4, Q4), (Q8, Q4), (PLAIN, PLAIN)][i % 3];
        let tile_rows = device.tile_heights()[i / 2 % 3].min(64);
        let (mut c, dims) = (Case::new(21), moe_dims(rows));
        let (offsets, order, tiles) = grouping(&mut c, rows, tile_rows, assignment(i % 2 == 1));
        // Gate and up lie in one stack with twice the stride, as fused tensors do.
        let fused = c.matrix(11 * 192, 128, formats.0);
        let other = c.matrix(11 * 192, 128, formats.1);
        let kernel = ExpertGateUp {
            args: ExpertGateUpArgs {
                dims,
                gate_format: fused.format,
                up_format: other.format,
                stride_rows: 192,
                tile_rows,
            },
            x: c.bf16(rows * 128, 1.0),
            offsets,
            order,
            tiles,
            gate_codes: fused.codes,
            gate_scales: fused.scales,
            gate_biases: fused.biases,
            up_codes: other.codes,
            up_scales: other.scales,
            up_biases: other.biases,
            y: c.poison(2 * rows * 3 * 96),
        };
        c.check(kernel.dispatch(), &format!("{rows} rows, {formats:?}"), device);
        let mut c = Case::new(22);
        let (offsets, order, tiles) = grouping(&mut c, rows, tile_rows, assignment(i % 2 == 0));
        let down = c.matrix(11 * 128, 96, [Q8, PLAIN][i % 2]);
        let kernel = ExpertDown {
            args: ExpertDownArgs { dims, format: down.format, stride_rows: 128, tile_rows },
            act: c.bf16(rows * 3 * 96, 1.0),
            offsets,
            order,
            tiles,
            codes: down.codes,
            scales: down.scales,
            biases: down.biases,
            y: c.poison(2 * rows * 3 * 128),
        };
        c.check(kernel.dispatch(), &format!("{rows} rows"), device);
    }
}

pub fn combine(device: &dyn Runs) {
    for rows in MANY_ROWS {
        let (mut c, dims) = (Case::new(23), moe_dims(rows));
        let kernel = Combine {
            args: CombineArgs { dims },
            y: c.bf16(rows * 3 * 128, 1.0),
            scores: c.f32(rows * 3, 0.0, 1.0),
            shared_y: c.bf16(rows * 128, 1.0),
            shared: c.f32(rows, 0.0, 1.0),
            h: c.bf16(rows * 128, 2.0),
        };
        c.check(kernel.dispatch(), &format!("{rows} rows"), device);
    }
}

/// Logits of a router and what is special about them.
fn router_logits(c: &mut Case, experts: u32) -> [(&'static str, Vec<f32>); 6] {
    let mut random = |scale: f32| -> Vec<f32> { (0..experts).map(|_| c.uniform() * scale).collect() };
    let (usual, huge) = (random(3.0), random(1e30));
    let few = (0..experts).map(|_| [1.0, 0.0, -0.0, -1.0][c.next() as usize % 4]).collect();
    let zeros = (0..experts).map(|i| if i % 3 == 1 { 0.0 } else { -0.0 }).collect();
    // Equals that one SIMD-group finds second and another first.
    let apart = usual.iter().enumerate().map(|(i, l)| if i % 128 == 0 && i > 0 { 4.0 } else { *l }).collect();
    // Every SIMD-group finds one or two that are far above the others: fewer than are chosen.
    let above = usual.iter().enumerate().map(|(i, l)| if i % 32 == 5 { 9.0 + l / 8.0 } else { *l }).collect();
    [
        ("usual", usual),
        ("huge", huge),
        ("many equal", few),
        ("zero of either sign", zeros),
        ("equal ones far apart", apart),
        ("a few far above the others", above),
    ]
}

/// Gate and up of a decode step, fused and as products with the same buffers; a [`Case`] for each shape and kind of logits.
pub fn gate_up_steps() -> Vec<(Case, ExpertsGateUpStep, ExpertsProductsStep, String)> {
    // Among them as many experts as a GPU takes, and rows longer than what it stages at a time.
    let shapes =
        [(512, 8, 128, 8, 8), (7, 2, 2176, 35, 32), (300, 16, 128, 8, 3), (11, 3, 128, 96, 64), (5, 1, 256, 33, 40)];
    let formats = [[RARE[0], RARE[3], RARE[8]], [Q4, RARE[5], Q4], [PLAIN, Q8, Q8], [Q4, Q4, Q4], [Q8, Q4, PLAIN]];
    let each = shapes.into_iter().zip(formats).flat_map(|pair| (0..4).rev().map(move |kind| (pair, kind)));
    // Pairs of one format: over several stretches of a row, and of a format without a wide path.
    let pairs = [((shapes[1], [Q4; 3]), 0), ((shapes[3], [RARE[5]; 3]), 0)];
    // Rows of so many groups that a GPU may copy their codes, at once and piece by piece.
    let wide = [((5, 2, 2048, 40, 24), [Q4; 3]), ((5, 2, 2560, 40, 24), [Q4; 3]), ((4, 2, 2048, 10, 8), [Q8; 3])];
    let wide = wide.map(|pair| (pair, 0));
    let each =
        [((shapes[0], formats[0]), 4), ((shapes[2], formats[2]), 5)].into_iter().chain(pairs).chain(wide).chain(each);
    each.map(|((shape, formats), kind)| gate_up_step_of(shape, formats, kind)).collect()
}

fn gate_up_step_of(
    shape: (u32, u32, u32, u32, u32),
    formats: [Format; 3],
    kind: usize,
) -> (Case, ExpertsGateUpStep, ExpertsProductsStep, String) {
    let (experts, top_k, width, expert_width, shared_width) = shape;
    let dims = MoeDims { rows: 1, width, experts, top_k, expert_width, shared_width, eps: 1e-6 };
    let mut c = Case::new(24);
    let (label, logits) = router_logits(&mut c, experts)[kind].clone();
    // Gate and up lie one behind the other, as fused tensors do.
    let stride_rows = 2 * expert_width;
    let gate = c.matrix(experts * stride_rows, width, formats[0]);
    let up = c.matrix(experts * stride_rows, width, formats[1]);
    let (shared_gate, shared_up) =
        (c.matrix(shared_width, width, formats[1]), c.matrix(shared_width, width, formats[2]));
    let fused = ExpertsGateUpStep {
        args: ExpertsGateUpStepArgs {
            dims,
            gate_format: gate.format,
            up_format: up.format,
            shared_gate_format: shared_gate.format,
            shared_up_format: shared_up.format,
            stride_rows,
        },
        h: c.bf16(width, 3.0),
        gain: c.f32(width, 0.5, 1.5),
        logits: c.bytes(bytemuck::cast_slice(&logits).to_vec()),
        gate_codes: gate.codes,
        gate_scales: gate.scales,
        gate_biases: gate.biases,
        up_codes: up.codes,
        up_scales: up.scales,
        up_biases: up.biases,
        shared_gate_codes: shared_gate.codes,
        shared_gate_scales: shared_gate.scales,
        shared_gate_biases: shared_gate.biases,
        shared_up_codes: shared_up.codes,
        shared_up_scales: shared_up.scales,
        shared_up_biases: shared_up.biases,
        experts: c.poison(4 * top_k),
        scores: c.poison(4 * top_k),
        act: c.poison(2 * top_k * expert_width),
        shared_act: c.poison(2 * shared_width),
    };
    let products = c.poison(8 * (top_k * expert_width + shared_width));
    let products = products_of(&fused, products);
    (c, fused, products, format!("{label} logits, {shape:?}, {formats:?}"))
}

/// The same step without the activation.
fn products_of(fused: &ExpertsGateUpStep, products: Slot) -> ExpertsProductsStep {
    let f = *fused;
    ExpertsProductsStep {
        args: ExpertsProductsStepArgs {
            dims: f.args.dims,
            gate_format: f.args.gate_format,
            up_format: f.args.up_format,
            shared_gate_format: f.args.shared_gate_format,
            shared_up_format: f.args.shared_up_format,
            stride_rows: f.args.stride_rows,
        },
        h: f.h,
        gain: f.gain,
        logits: f.logits,
        gate_codes: f.gate_codes,
        gate_scales: f.gate_scales,
        gate_biases: f.gate_biases,
        up_codes: f.up_codes,
        up_scales: f.up_scales,
        up_biases: f.up_biases,
        shared_gate_codes: f.shared_gate_codes,
        shared_gate_scales: f.shared_gate_scales,
        shared_gate_biases: f.shared_gate_biases,
        shared_up_codes: f.shared_up_codes,
        shared_up_scales: f.shared_up_scales,
        shared_up_biases: f.shared_up_biases,
        experts: f.experts,
        scores: f.scores,
        products,
    }
}

pub fn experts_gate_up_step(device: &dyn Runs) {
    gate_up_steps().into_iter().for_each(|(c, fused, _, label)| c.check(fused.dispatch(), &label, device));
}

/// Down projections of a decode step, summed and each for itself with the same buffers; a [`Case`] for each shape.
pub fn down_steps() -> Vec<(Case, ExpertsDownStep, ExpertsEachStep, String)> {
    // Widths of few and of many lanes, and longer than what a SIMD-group reads at a time; outputs that fill no threadgroup.
    let shapes = [(11, 3, 128, 96, 64), (9, 1, 77, 64, 512), (40, 16, 19, 256, 64), (4, 2, 13, 1152, 1024)];
    let formats = [(Q8, Q4), (Q4, Q8), (PLAIN, Q4), (Q4, PLAIN), (RARE[4], RARE[3]), (RARE[0], RARE[7])];
    let pairs = shapes.into_iter().cycle().zip(formats).chain([(shapes[2], (Q4, Q4))]);
    pairs.map(|(shape, (routed, shared))| down_step_of(shape, routed, shared)).collect()
}

fn down_step_of(
    shape: (u32, u32, u32, u32, u32),
    routed: Format,
    shared: Format,
) -> (Case, ExpertsDownStep, ExpertsEachStep, String) {
    let (experts, top_k, width, expert_width, shared_width) = shape;
    // Widths that the format's groups do not divide do not exist.
    let fits = |format: Format, cols: u32| match format {
        Format::Affine { group, .. } => cols.next_multiple_of(group as u32),
        Format::Dense(_) => cols,
    };
    let (expert_width, shared_width) = (fits(routed, expert_width), fits(shared, shared_width));
    let dims = MoeDims { rows: 1, width, experts, top_k, expert_width, shared_width, eps: 1e-6 };
    let mut c = Case::new(25);
    let (down, shared_down) = (c.matrix(experts * width, expert_width, routed), c.matrix(width, shared_width, shared));
    let chosen: Vec<u32> = (0..top_k).map(|i| (i * 7 + 3) % experts).collect();
    let (format, shared_format) = (down.format, shared_down.format);
    let (act, shared_act) = (c.bf16(top_k * expert_width, 1.0), c.bf16(shared_width, 1.0));
    let experts = c.u32(&chosen);
    let (codes, scales, biases) = (down.codes, down.scales, down.biases);
    let (shared_codes, shared_scales, shared_biases) = (shared_down.codes, shared_down.scales, shared_down.biases);
    let fused = ExpertsDownStep {
        args: ExpertsDownStepArgs { dims, format, shared_format, stride_rows: width },
        act,
        shared_act,
        experts,
        scores: c.f32(top_k, 0.0, 1.0),
        shared: c.f32(1, 0.0, 1.0),
        codes,
        scales,
        biases,
        shared_codes,
        shared_scales,
        shared_biases,
        h: c.bf16(width, 2.0),
    };
    let each = ExpertsEachStep {
        args: ExpertsEachStepArgs { dims, format, shared_format, stride_rows: width },
        act,
        shared_act,
        experts,
        codes,
        scales,
        biases,
        shared_codes,
        shared_scales,
        shared_biases,
        y: c.poison(2 * top_k * width),
        shared_y: c.poison(2 * width),
    };
    (c, fused, each, format!("{shape:?}, {routed:?}, {shared:?}"))
}

pub fn experts_down_step(device: &dyn Runs) {
    down_steps().into_iter().for_each(|(c, fused, _, label)| c.check(fused.dispatch(), &label, device));
}
