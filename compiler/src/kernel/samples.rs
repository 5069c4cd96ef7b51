//! Kernels written by hand, for the tests of all four companions.
//!
//! Each is exactly as `print` writes it, verifies without complaint, and is run against literal numbers in
//! `run/tests.rs`.

pub(crate) const ALL: [&str; 13] = [
    MAP,
    BLOCKS,
    ROW_REDUCTION,
    MATRIX_VECTOR,
    ATTENTION,
    GATHER,
    ROUTED,
    TWO_PARTS,
    ODD_NAMES,
    PRODUCT,
    SELECTED,
    SHARED,
    AHEAD,
];

/// Thirteen elements in blocks of four: the last block has one.
pub(crate) const MAP: &str = r#"kernel "scale x" map
  read @0 x : f32[d:13]
  write @1 y : f16[d:13]
part
  var d0 in blocks of 4 step 4 from 0 to 13
  var d1 within d0
  grid d0
  for d1
    @1[d1] = add(mul(@0[d1], 2.0), 0.5)
"#;

/// Two rows that become blocks: each task rounds half of both.
pub(crate) const BLOCKS: &str = r#"kernel "round x" map
  read @0 x : f32[r:2, d:64]
  write @1 y : q8_0[r:2, d:64]
part
  tile tile0 : f32[2, 32]
  var d0 in blocks of 32 step 32 from 0 to 64
  var r1 in 0..2
  var d2 within d0
  grid d0
  for r1, d2
    tile0[r1, -d0+d2] = neg(@0[r1, d2])
  for r1, d2
    @1[r1, d2] = tile0[r1, -d0+d2]
"#;

/// The mean of squares of each row that is there.
pub(crate) const ROW_REDUCTION: &str = r#"symbol T in 0..4 near 1
kernel "mean of squares" row-reduction
  read @0 x : f32[t:T, d:3]
  write @1 y : f32[t:T]
part
  tile tile0 : f32[]
  var t0 in 0..T
  var d1 in 0..3
  grid t0
  let %0 = @0[t0, d1]
  tile0[] = sum d1 of mul(%0, %0)
  @1[t0] = div(tile0[], 3.0)
"#;

/// Rows of quantised weights times a vector that each task copies first.
pub(crate) const MATRIX_VECTOR: &str = r#"kernel "matvec w" matrix-vector
  read @0 x : f32[d:32]
  read @1 w : q8_0[e:3, d:32]
  write @2 y : f32[e:3]
part
  tile tile0 : f32[32]
  var e0 in blocks of 2 step 2 from 0 to 3
  var e1 within e0
  var d2 in 0..32
  grid e0
  for d2
    tile0[d2] = @0[d2]
  for e1
    @2[e1] = sum d2 of mul(tile0[d2], @1[e1, d2])
"#;

/// Softmax-weighted sums over the first `P + 1` entries of a cache, two at a time: the largest score so far, the sum
/// of weights and the weighted sum are carried from block to block.
pub(crate) const ATTENTION: &str = r#"symbol P in 0..7 near 5
kernel "attend" attention
  read @0 scores : f32[s:8]
  read @1 v : f32[s:8, e:2]
  write @2 out : f32[e:2]
part
  tile tile0 : f32[]
  tile tile1 : f32[]
  tile tile2 : f32[]
  tile tile3 : f32[2]
  var s0 in blocks of 2 step 2 from 0 to P+1
  var s1 within s0
  var e2 in 0..2
  grid
  tile0[] = -inf
  tile2[] = 0.0
  for e2
    tile3[e2] = 0.0
  loop s0
    tile1[] = tile0[]
    tile0[] = max s1 of @0[s1] from tile0[]
    let %0 = tile0[]
    tile2[] = sum s1 of exp(sub(@0[s1], %0)) from mul(tile2[], exp(sub(tile1[], %0)))
    for e2
      let %0 = tile0[]
      tile3[e2] = sum s1 of mul(exp(sub(@0[s1], %0)), @1[s1, e2]) from mul(tile3[e2], exp(sub(tile1[], %0)))
  end
  for e2
    @2[e2] = div(tile3[e2], tile2[])
"#;

/// Rows gathered by an index from memory.
pub(crate) const GATHER: &str = r#"symbol T in 0..3 near 1
kernel "gather rows" experts
  read @0 ids : i32[t:T]
  read @1 table : f32[row:4, d:2]
  write @2 y : f32[t:T, d:2]
part
  var t0 in 0..T
  var d1 in 0..2
  grid t0
  for d1
    @2[t0, d1] = @1[lookup(@0[t0], 4), d1]
"#;

/// Two rows a token, each scaled by the expert that it is routed to; an expert takes two rows at a time.
pub(crate) const ROUTED: &str = r#"symbol T in 0..3 near 2
kernel "scale by experts" experts
  read @0 x : f32[r:6]
  read @1 ids : i32[t:T, k:2]
  read @2 scales : f32[x:4]
  write @3 y : f32[r:6]
part
  tile tile0 : i32[6]
  var t0 in 0..T
  var k1 in 0..2
  var x2 in 0..4
  var block3 in blocks of 2 step 2 from 0 to 6
  var row4 within block3
  grid x2
  list tile0 along block3 of t0, k1 where lookup(@1[t0, k1], 4) = x2
  loop block3
    for row4
      @3[lookup(tile0[row4], 6)] = mul(@0[lookup(tile0[row4], 6)], @2[x2])
  end
"#;

/// Two grids of one launch; the second transposes, selects and keeps a position.
pub(crate) const TWO_PARTS: &str = r#"kernel "double | transpose" map
  read @0 x : f32[a:2, b:3]
  write @1 y : f32[a:2, b:3]
  write @2 z : i32[c:6]
part
  var a0 in 0..2
  var b1 in 0..3
  grid a0, b1
  @1[a0, b1] = add(@0[a0, b1], @0[a0, -b1+2])
part
  var c0 in 0..6
  grid c0
  let %0 = @0[(c0%2), (c0/2)]
  @2[c0] = select(lt(%0, 2.5), cast.i32(%0), neg(position(-c0+min(10*c0, 30))))
"#;

/// Names that must be told from each other.
pub(crate) const ODD_NAMES: &str = r#"symbol "P0" in 1..4 near 2
symbol b in -1..1 near 0
kernel "quotes \" and # and\nlines" top-k
  read @0 "a name" : i32[row0:2*"P0", "k-v x":3]
  write @1 blk.0.out : bf16[row0:8]
part
  var row0_0 in 0..2*"P0"
  var v1 "k-v " in 0..3
  var b2 in 0..1
  grid row0_0, b2
  @1[row0_0] = max v1 of cast.bf16(@0[max(row0_0+b2-2*b-2, 0), min(v1, 2)])
"#;

/// A product of 16 tokens with 32 rows of a weight, in K-steps of 64 of 128, which says that tensor cores take it.
pub(crate) const PRODUCT: &str = r#"kernel "matmat w" matrix-matrix
  read @0 x : f32[t:16, d:128]
  read @1 w : q8_0[r:32, d:128]
  write @2 y : f32[t:16, r:32]
part
  tile tile0 : f32[16, 32]
  tile tile1 : f32[16, 64]
  tile tile2 : f32[32, 64]
  var t0 in 0..16
  var r1 in 0..32
  var d2 in blocks of 64 step 64 from 0 to 128
  var d3 within d2
  grid
  for t0, r1
    tile0[t0, r1] = 0.0
  loop d2
    for t0, d3
      tile1[t0, -d2+d3] = @0[t0, d3]
    for r1, d3
      tile2[r1, -d2+d3] = @1[r1, d3]
    for t0, r1
      mma.bf16 right row r1 columns t0 along d3
      tile0[t0, r1] = sum d3 of mul(tile1[t0, -d2+d3], tile2[r1, -d2+d3]) from tile0[t0, r1]
  end
  for t0, r1
    @2[t0, r1] = tile0[t0, r1]
"#;

/// A product of 3 tokens with 5 rows of a weight, and a weighted sum of 4 rows for each, which say that they are.
pub(crate) const SELECTED: &str = r#"kernel "selected" matrix-matrix
  read @0 x : f32[t:3, d:32]
  read @1 w : q8_0[e:5, d:32]
  read @2 v : f16[s:4, f:8]
  read @3 p : f32[t:3, s:4]
  write @4 y : f32[t:3, e:5]
  write @5 z : f32[t:3, f:8]
part
  var t0 in 0..3
  var e1 in 0..5
  var d2 in 0..32
  var s3 in 0..4
  var f4 in 0..8
  grid
  for t0, e1
    product right row e1 columns t0 along d2
    @4[t0, e1] = sum d2 of mul(@0[t0, d2], @1[e1, d2])
  for t0, f4
    mix left row s3 columns t0 along f4
    @5[t0, f4] = sum s3 of mul(cast.f32(@2[s3, f4]), @3[t0, s3])
"#;

/// Tasks that follow each other with one token share its activations, which the first of them quantises.
pub(crate) const SHARED: &str = r#"kernel "matvec w" matrix-vector
  read @0 x : f32[t:3, d:32]
  read @1 w : q8_0[e:6, d:32]
  write @2 y : f32[t:3, e:6]
part
  tile tile0 : f32[32]
  var t0 in 0..3
  var e1 in blocks of 2 step 2 from 0 to 6
  var e2 within e1
  var d3 in 0..32
  grid t0, e1
  quantised activations0 : tile0[d3] along d3
  once per t0
    for d3
      tile0[d3] = mul(@0[t0, d3], 0.5)
    quantise activations0
  end
  for e2
    product right row e2 along d3 quantised activations0
    @2[t0, e2] = sum d3 of mul(tile0[d3], @1[e2, d3])
"#;

/// A buffer of activations that is quantised ahead of all tasks.
pub(crate) const AHEAD: &str = r#"kernel "matmat w" matrix-matrix
  read @0 x : f32[t:48, d:32]
  read @1 w : q8_0[e:6, d:32]
  write @2 y : f32[t:48, e:6]
part
  var t0 in blocks of 16 step 16 from 0 to 48
  var e1 in 0..6
  var t2 within t0
  var d3 in 0..32
  grid t0
  quantised ahead activations0 : @0[t2, d3] columns t2 along d3
  for t2, e1
    product right row e1 columns t2 along d3 quantised activations0
    @2[t2, e1] = sum d3 of mul(@0[t2, d3], @1[e1, d3])
"#;
