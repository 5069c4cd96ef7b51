//! Samples that verify, and one kernel for each complaint.

use super::*;
use crate::foundation::entity::{Id, List};
use crate::kernel::index::Atom;
use crate::kernel::parse::parse;
use crate::kernel::samples;
use crate::kernel::{Expr, ExprId, Nest, Stmt};
use crate::tensor::sym::{Sym, Symbol};

#[test]
fn samples_verify() {
    for text in samples::ALL {
        assert_eq!(verify(&parse(text).unwrap()), [], "{text}");
    }
}

/// A sample with one piece replaced has exactly these complaints, one a line.
fn check(sample: &str, piece: &str, with: &str, expected: &str) {
    assert!(sample.contains(piece), "{piece}");
    let kernel = parse(&sample.replacen(piece, with, 1)).unwrap();
    let complaints: Vec<String> = verify(&kernel).iter().map(Complaint::to_string).collect();
    assert_eq!(complaints.join("\n"), expected, "{with}");
}

#[test]
fn buffers_tiles_and_ranges_that_do_not_fit() {
    let positive = "every size must be from 1 up, and the elements at most";
    check(samples::MAP, "x : f32[d:13]", "x : f32[d:0]", &format!("buffer @0: {positive} 2^40"));
    check(
        samples::MATRIX_VECTOR,
        "[e:3, d:32]",
        "[e:3, d:33]",
        "buffer @1: its elements do not fill blocks of q8_0, whole blocks are needed",
    );
    check(
        samples::MAP,
        "f16[d:13]",
        "q4_1[d:32]",
        "buffer @1: q4_1 cannot be written, an element type, q8_0 or q4_0 can",
    );
    check(samples::MATRIX_VECTOR, "f32[32]", "f32[0]", &format!("part 0: tile0: {positive} 2^24"));
    check(samples::MAP, "step 4", "step 0", "part 0: d0: steps and blocks must be from 1 up");
    check(
        samples::ATTENTION,
        "s1 within s0\n  var e2 in 0..2",
        "s1 in 0..2\n  var e2 within s1",
        "part 0: e2: runs within s1, which must be a variable of blocks declared above",
    );
    check(samples::MAP, "from 0 to", "from -1 to", "part 0: d0 may start at -1, it must start from 0 up");
}

#[test]
fn variables_out_of_place() {
    let blocks = "var c1 in blocks of 2 step 2 from 0 to 6\n  var c2 within c1\n";
    let part = |piece: &str, with: &str, expected: &str| {
        let sample =
            samples::TWO_PARTS.replacen("var c0 in 0..6\n", &format!("var c0 in 0..6\n  {blocks}"), 1);
        check(&sample, piece, with, expected);
    };
    part("grid c0", "grid c0, c0", "part 1: c0 has a value already");
    part(
        "grid c0",
        "grid c0, c1, c2",
        "part 1: c2 is a variable of the grid, which takes whole axes and blocks",
    );
    part(
        "grid c0",
        "grid c0\n  for c1",
        "part 1, @2[c0]: c1 is a variable of a nest, which takes whole axes and positions within a block",
    );
    part("grid c0", "grid c0\n  for c2", "part 1, @2[c0]: c2 runs within c1, which has no value here");
    part("min(10*c0", "min(10*c1", "part 1, @2[c0]: c1 has no value here");
    let range = |start: &str| format!("in blocks of 2 step 2 from {start} to 6");
    let swapped = format!("var c0 {}\n  var c1 {}\n  grid c1, c0", range("0"), range("c0"));
    let sample = samples::TWO_PARTS.replacen("var c0 in 0..6\n  grid c0", &swapped, 1);
    check(&sample, "double", "double", "part 1: c0 has no value here");
}

#[test]
fn accesses_that_leave_their_place() {
    check(samples::MAP, "@0[d1]", "@0[d1+1]", "part 0, @1[d1]: d1+1 is in 1..=13, axis 0 of @0 takes 0..=12");
    check(
        samples::MAP,
        "@0[d1]",
        "@0[d1-1]",
        "part 0, @1[d1]: d1-1 is in -1..=11, axis 0 of @0 takes 0..=12",
    );
    check(
        samples::MAP,
        "@0[d1]",
        "@0[d1, 0]",
        "part 0, @1[d1]: @0 has rank 1 and is given an index of rank 2",
    );
    check(
        samples::MAP,
        "@1[d1]",
        "@1[d1+1]",
        "part 0, @1[d1+1]: d1+1 is in 1..=13, axis 0 of @1 takes 0..=12",
    );
    check(
        samples::GATHER,
        "lookup(@0[t0], 4)",
        "lookup(@0[t0+1], 4)",
        "part 0, @2[t0, d1]: t0+1 is in 1..=3, axis 0 of @0 takes 0..=2",
    );
    check(
        samples::GATHER,
        "lookup(@0[t0], 4)",
        "lookup(@0[t0], 5)",
        "part 0, @2[t0, d1]: lookup(@0[t0], 5) is in 0..=4, axis 0 of @1 takes 0..=3",
    );
    check(
        samples::GATHER,
        "lookup(@0[t0], 4)",
        "lookup(@1[0, 0], 4)",
        "part 0, @2[t0, d1]: a lookup in @1, which must hold i32",
    );
}

#[test]
fn blocks_are_stored_whole_and_from_tiles() {
    let whole = |at: &str| {
        format!("part 0, @1{at}: stores to @1 other than by copying whole blocks of q8_0 from a tile")
    };
    check(samples::BLOCKS, "= tile0[r1, -d0+d2]", "= neg(tile0[r1, -d0+d2])", &whole("[r1, d2]"));
    check(samples::BLOCKS, "= tile0[r1, -d0+d2]", "= @0[r1, d2]", &whole("[r1, d2]"));
    check(samples::BLOCKS, "for r1, d2\n    @1", "for d2, r1\n    @1", &whole("[r1, d2]"));
    check(samples::BLOCKS, "@1[r1, d2]", "@1[r1, -d0+d2+16]", &whole("[r1, -d0+d2+16]"));
    check(samples::BLOCKS, "@1[r1, d2]", "@1[r1, 2*d0-d2+31]", &whole("[r1, 2*d0-d2+31]"));
    check(samples::BLOCKS, "blocks of 32", "blocks of 31", &whole("[r1, d2]"));
}

#[test]
fn reads_and_writes_of_the_wrong_places() {
    check(
        samples::ROW_REDUCTION,
        "@1[t0] = ",
        "@0[t0, 0] = ",
        "part 0, @0[t0, 0]: stores to @0, which is for reading",
    );
    check(
        samples::TWO_PARTS,
        "select(lt(%0, 2.5)",
        "select(lt(@1[0, 0], 2.5)",
        "part 1, @2[c0]: reads @1, which is for writing",
    );
    check(
        samples::ATTENTION,
        "  tile2[] = 0.0\n",
        "",
        "part 0, tile2[]: reads tile2 before it is written\npart 0, @2[e2]: reads tile2 before it is written",
    );
    check(
        samples::ATTENTION,
        "    tile1[] = tile0[]\n",
        "    tile1[] = tile0[]\n  end\n  loop s0\n",
        "part 0, tile2[]: reads tile1 before it is written\npart 0, tile3[e2]: reads tile1 before it is written",
    );
}

#[test]
fn a_nest_reads_of_its_target_only_what_its_fold_starts_from() {
    let sample = samples::ATTENTION;
    check(
        sample,
        "@0[s1] from tile0[]",
        "add(@0[s1], tile0[])",
        "part 0, tile0[]: reads tile0[], which it writes",
    );
    check(
        sample,
        "from mul(tile3[e2]",
        "from mul(tile3[-e2+1]",
        "part 0, tile3[e2]: reads tile3[-e2+1], which it writes",
    );
    check(sample, "from mul(tile3[e2]", "from mul(@1[s1, 0]", "part 0, tile3[e2]: s1 has no value here");
    check(
        sample,
        "max s1 of @0[s1]",
        "max of @0[0]",
        "part 0, tile0[]: folds over no loop, one or more are needed",
    );
}

#[test]
fn a_nest_is_the_product_that_it_says() {
    const PRODUCT: &str = "product right row e1 columns t0 along d2";
    const MIX: &str = "mix left row s3 columns t0 along f4";
    let apart = "the elements of a sum are not adjacent in both factors";
    for with in [
        "product right row t0 columns e1 along d2",
        "product right row e1 columns t0",
        "product right row d2 columns t0 along d2",
        "product right row e1 columns t0, e1 along d2",
        "product right row e1 columns t0 along e1",
    ] {
        let expected = format!("part 0, @4[t0, e1]: is no product as it says: {apart}");
        check(samples::SELECTED, PRODUCT, with, &expected);
    }
    let expected = "part 0, @4[t0, e1]: is no product as it says: no micro-kernel multiplies f32 with q8_0";
    check(samples::SELECTED, PRODUCT, "product left row e1 columns t0 along d2", expected);
    let expected = format!("part 0, @4[t0, e1]: is no mix as it says: {apart}");
    check(
        &samples::SELECTED.replace("w : q8_0", "w : f32"),
        PRODUCT,
        "mix right row d2 columns t0 along e1",
        &expected,
    );
    let expected = format!("part 0, @5[t0, f4]: is no mix as it says: {apart}");
    for with in
        ["mix left row s3 columns t0", "mix left columns t0 along f4", "mix left row f4 columns t0 along s3"]
    {
        check(samples::SELECTED, MIX, with, &expected);
    }
    // Without columns a product is one of several calls.
    check(samples::SELECTED, PRODUCT, "product right row e1 along d2", "");
    let expected =
        "part 0, @4[t0, e1]: is no product as it says: the terms of the sum are not products of two elements";
    check(samples::SELECTED, "sum d2 of", "max d2 of", expected);
    let expected =
        "part 0, @4[t0, e1]: is no product as it says: rows of 40 elements are not whole blocks of 32 (q8_0)";
    let shorter = samples::SELECTED.replace("d:32", "d:64").replace("0..32", "0..40");
    check(&shorter, "0..40", "0..40", expected);
}

#[test]
fn the_matrix_of_a_product_is_selected_as_it_says() {
    const ROUTED: &str = r#"kernel "routed" experts
  read @0 x : f32[t:4, d:32]
  read @1 picked : i32[t:4, k:2]
  read @2 w : q8_0[x:3, e:5, d:32]
  write @3 y : f32[t:4, k:2, e:5]
part
  var t0 in 0..4
  var k1 in 0..2
  var e2 in 0..5
  var d3 in 0..32
  grid
  for t0, k1, e2
    product right row e2 along d3 routed t0, k1
    @3[t0, k1, e2] = sum d3 of mul(@0[t0, d3], @2[lookup(@1[t0, k1], 3), e2, d3])
"#;
    assert_eq!(parse(ROUTED).unwrap().to_string(), ROUTED);
    check(ROUTED, " routed t0, k1", "", "");
    let reason = "no number from memory selects a matrix by these loops";
    let expected = &format!("part 0, @3[t0, k1, e2]: is no product as it says: {reason}");
    for with in ["routed t0", "routed k1, t0", "routed e2"] {
        check(ROUTED, "routed t0, k1", with, expected);
    }
    let one = ROUTED.replace("lookup(@1[t0, k1], 3)", "1");
    check(&one, "row e2 along d3", "row e2 columns t0 along d3", expected);
}

#[test]
fn a_nest_over_tiles_is_the_product_that_it_says() {
    const PRODUCT: &str = "mma.bf16 right row r1 columns t0 along d3";
    check(samples::PRODUCT, PRODUCT, "mma.tf32 right row r1 columns t0 along d3", "");
    let expected =
        "part 0, tile0[t0, r1]: is no mma.bf16 as it says: the tiles are not whole fragments of an MMA";
    for with in [
        "mma.bf16 left row r1 columns t0 along d3",
        "mma.bf16 right row t0 columns r1 along d3",
        "mma.bf16 right row r1 columns t0, r1 along d3",
        "mma.bf16 right row r1 columns t0 along r1",
        "mma.bf16 right columns t0 along d3",
        "mma.bf16 right row r1 along d3",
    ] {
        check(samples::PRODUCT, PRODUCT, with, expected);
    }
    let short = samples::PRODUCT.replace("64]", "8]").replace("step 64", "step 8");
    check(&short, "blocks of 64", "blocks of 8", expected);
    // Rounded elements are for MMAs, and pairs of them are stored together.
    let expected = "part 0: tile1 is an operand of MMAs, and others read, fill or lay it out otherwise";
    check(samples::PRODUCT, "= @1[r1, d3]", "= mul(@1[r1, d3], tile1[0, -d2+d3])", expected);
    check(samples::PRODUCT, "= @0[t0, d3]", "= cast.f32(position(d3))", expected);
}

#[test]
fn what_is_quantised_is_what_products_multiply() {
    let store = "part 0, @2[t0, e2]:";
    let check_shared =
        |piece: &str, with: &str, expected: &str| check(samples::SHARED, piece, with, expected);
    let stale = &format!("{store} activations0 is not quantised here");
    check_shared("    quantise activations0\n", "", stale);
    check_shared("  for e2\n", "  for d3\n    tile0[d3] = 1.0\n  for e2\n", stale);
    let other = &format!("{store} multiplies other columns than activations0, those of @0[t0, d3]");
    check_shared("activations0 : tile0[d3]", "activations0 : @0[t0, d3]", other);
    let elements = "part 0: activations0 is of elements that there are not";
    check_shared("activations0 : tile0[d3]", "activations0 : tile0[d3, d3]", elements);
    check_shared(
        "tile tile0 : f32",
        "tile tile0 : f16",
        "part 0: activations0 is of tile0, which must hold f32",
    );
    let tile = samples::SHARED.replace("    quantise activations0\n", "");
    let part =
        format!("{store} activations0 cannot be quantised ahead: it is no whole buffer, by 16 columns");
    check(&tile, "quantised activations0 :", "quantised ahead activations0 :", &part);
    let length = &format!("{store} activations0 has no fixed length or no bound");
    check(&samples::SHARED.replace("q8_0", "f16"), "d3 in 0..32", "d3 in 0..-1", length);
    let twice = "part 0: activations0 is quantised ahead of all tasks, and again";
    check(samples::AHEAD, "  for t2, e1\n", "  quantise activations0\n  for t2, e1\n", twice);
    let part =
        "part 0, @2[t2, e1]: activations0 cannot be quantised ahead: it is no whole buffer, by 16 columns";
    check(samples::AHEAD, "blocks of 16 step 16", "blocks of 8 step 8", part);
}

#[test]
fn what_a_loop_changes_is_quantised_in_each_round() {
    const LOOP: &str = r#"kernel "matvec w" matrix-vector
  read @0 x : f32[r:2, d:32]
  read @1 w : q8_0[e:6, d:32]
  write @2 y : f32[e:6]
part
  tile tile0 : f32[32]
  tile tile1 : f32[6]
  var r0 in 0..2
  var e1 in 0..6
  var d2 in 0..32
  grid
  quantised activations0 : tile0[d2] along d2
  for e1
    tile1[e1] = 0.0
  for d2
    tile0[d2] = @0[0, d2]
  loop r0
    quantise activations0
    for e1
      product right row e1 along d2 quantised activations0
      tile1[e1] = sum d2 of mul(tile0[d2], @1[e1, d2]) from tile1[e1]
    for d2
      tile0[d2] = @0[r0, d2]
  end
  for e1
    @2[e1] = tile1[e1]
"#;
    check(LOOP, "read", "read", "");
    let before = "  quantise activations0\n  loop r0\n";
    let stale = "part 0, tile1[e1]: activations0 is not quantised here";
    check(LOOP, "  loop r0\n    quantise activations0\n", before, stale);
    let still = LOOP.replace("    for d2\n      tile0[d2] = @0[r0, d2]\n", "");
    check(&still, "  loop r0\n    quantise activations0\n", before, "");
}

#[test]
fn what_is_done_once_is_the_same_for_the_tasks_that_share_it() {
    let check = |with: &str, expected: &str| check(samples::SHARED, "once per t0", with, expected);
    check("once", "part 0: what is done once depends on t0 too");
    let outer = "part 0: a `once` is per some outer variables of the grid, not all";
    for with in ["once per e1", "once per t0, e1", "once per d3"] {
        check(with, outer);
    }
    check(
        "once per t0\n    once\n    end",
        "part 0: a `once` stands in the body of a part, not in a loop or in another",
    );
    // What each task fills anew cannot be read by what is done once.
    check("for d3\n    tile0[d3] = 1.0\n  once per t0", "part 0: what is done once depends on e1 too");
}

#[test]
fn types_that_do_not_fit() {
    let select = "select(lt(%0, 2.5), cast.i32(%0), neg(";
    let store = "part 1, @2[c0]:";
    let check_select = |with: &str, expected: &str| {
        check(samples::TWO_PARTS, select, with, &format!("{store} {expected}"));
    };
    check_select("select(%0, cast.i32(%0), neg(", "e4: select by f32, i32 is needed");
    check_select("select(lt(%0, 2.5), %0, neg(", "e5: select of f32 and i32, one type is needed");
    check_select("select(lt(%0, 2), cast.i32(%0), neg(", "e2: lt of f32 and i32, one type is needed");
    check_select("select(lt(%0, 2.5), cast.i32(%0), exp(", "e5: exp of i32, f32 is needed");
    check_select("select(div(2, 1), cast.i32(%0), neg(", "e3: div of i32, f32 is needed");
    check_select("select(lt(%0, 2.5), %0, cast.f32(", "stores f32 to @2, which holds i32");
    check(
        samples::ATTENTION,
        "@0[s1] from tile0[]",
        "@0[s1] from 0",
        "part 0, tile0[]: folds f32 from i32, one type is needed",
    );
}

#[test]
fn a_list_of_routed_rows_has_each_row_once() {
    let sample = samples::ROUTED;
    let expert = "part 0: the expert of a row may depend on the row only";
    check(sample, "lookup(@1[t0, k1], 4) = x2", "lookup(@1[t0, k1], 4)+x2 = x2", expert);
    check(sample, "= x2\n", "= k1\n", "part 0: k1 must number experts: a whole axis of the grid");
    check(sample, "i32[6]", "i32[7]", "part 0: tile0 must have room for 6 of i32, one for each row");
    let blocks = "part 0: block3 must run through tile0 in blocks, one after another";
    check(sample, "step 2 from", "step 3 from", blocks);
    check(sample, "to 6", "to 5", blocks);
    let stores = "part 0: tile0 is a list and stored to, which only the list itself may";
    check(sample, "  loop block3\n", "  tile0[0] = 1\n  loop block3\n", stores);
    // Rows that are clamped to one number may be those of two tasks.
    let race = "kernel \"scale by experts\", part 0, @3[lookup(tile0[row4], 5)]: \
        tasks that differ in x2 may store to the same element of y";
    check(&sample.replace("row4], 6)", "row4], 5)"), "experts\n", "map\n", race);
}

fn edited(edit: impl FnOnce(&mut Kernel, &mut Nest)) -> Vec<String> {
    let mut kernel = parse(samples::MAP).unwrap();
    let mut body = std::mem::take(&mut kernel.parts[0].body);
    let Stmt::Nest(nest) = &mut body[0] else { unreachable!() };
    edit(&mut kernel, nest);
    kernel.parts[0].body = body;
    assert!(!kernel.to_string().is_empty());
    verify(&kernel).iter().map(Complaint::to_string).collect()
}

#[test]
fn ids_that_lead_nowhere() {
    let nowhere = ExprId::from_index(9);
    assert_eq!(edited(|_, nest| nest.value = nowhere), ["part 0, @1[d1]: there is no e9"]);
    let neg = Expr::Unary(crate::graph::op::Unary::Neg, nowhere);
    assert_eq!(
        edited(|_, nest| nest.value = nest.exprs.push(neg)),
        ["part 0, @1[d1]: e5 refers to e9, which must come earlier"]
    );
    let tile = Place::Tile(TileId::from_index(3));
    assert_eq!(edited(|_, nest| nest.target = tile), ["part 0, tile3[d1]: there is no tile3"]);
    let load = |from| Expr::Load { from, at: Vec::new() };
    assert_eq!(
        edited(|_, nest| {
            nest.exprs = List::from_iter([load(tile)]);
            nest.value = ExprId::from_index(0);
        }),
        ["part 0, @1[d1]: there is no tile3"]
    );
    let param = Place::Param(ParamId::from_index(7));
    assert_eq!(
        edited(|_, nest| {
            nest.exprs = List::from_iter([load(param)]);
            nest.value = ExprId::from_index(0);
        }),
        ["part 0, @1[d1]: there is no @7"]
    );
    let var = VarId::from_index(8);
    assert_eq!(edited(|_, nest| nest.loops.push(var)), ["part 0, @1[d1]: v8 is not a variable of this part"]);
    assert_eq!(edited(|_, nest| nest.at = vec![Index::var(var)]), ["part 0, @1[v8]: v8 has no value here"]);
}

#[test]
fn symbols_and_atoms_that_do_not_fit() {
    let symbol = |max| Sym::from(Symbol::new(crate::tensor::label::Label::new("T").unwrap(), 1, max, 1));
    let ranges = edited(|kernel, nest| {
        kernel.parts[0].vars[VarId::from_index(0)].range = Range::Whole { len: symbol(3) };
        nest.at = vec![Index::sym(&symbol(4))];
    });
    assert_eq!(ranges[0], "kernel: symbol T is in 1..3 near 1 and in 1..4 near 1, one range is possible");
    let atom = |atom| edited(|_, nest| nest.at = vec![Index::atom(atom)]);
    let zero = || Box::new(Index::constant(0));
    assert_eq!(atom(Atom::Div(zero(), 0)), ["part 0, @1[(0/0)]: a division by 0, it must be by 1 or more"]);
    let lookup = Atom::Lookup { from: Place::Param(ParamId::from_index(0)), at: Vec::new(), below: 0 };
    assert_eq!(atom(lookup), ["part 0, @1[lookup(@0[], 0)]: a lookup below 0, it must be below 1 or more"]);
    let later = edited(|kernel, _| {
        let start = Index::var(VarId::from_index(1));
        let range = Range::Blocks(Blocks { start, step: 4, block: 4, end: Sym::from(13) });
        kernel.parts[0].vars[VarId::from_index(0)].range = range;
    });
    assert_eq!(later, ["part 0: d0: the first start may depend on variables declared above only"]);
}
