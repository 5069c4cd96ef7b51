//! Kernels as text, for the tests of several files here.
//!
//! Each verifies; tests put other sizes and scalars into it.

/// Causal attention of four tokens, two positions at a time.
pub(super) const MASKED: &str = r#"symbol P in 0..4 near 2
kernel "attention" attention
  read @0 q : f32[t:4, s:8]
  read @1 v : f32[s:8, e:3]
  write @2 y : f32[t:4, e:3]
part
  tile tile0 : f32[2, 3]
  tile tile1 : f32[2]
  tile tile2 : f32[2]
  tile tile3 : f32[2, 2]
  tile tile4 : f32[2, 2]
  tile tile5 : f32[2]
  tile tile6 : f32[2]
  var t0 in blocks of 2 step 2 from 0 to 4
  var t1 within t0
  var e2 in 0..3
  var s3 in blocks of 2 step 2 from 0 to P+4 until t0+P+2
  var s4 within s3 until t0+P+2
  var t5 within t0
  grid t0
  for t1
    tile2[-t0+t1] = -3.4028235e38
  for t1
    tile1[-t0+t1] = 0.0
  for t1, e2
    tile0[-t0+t1, e2] = 0.0
  loop s3
    for t1, s4
      tile3[-t0+t1, -s3+s4] = add(@0[t1, s4], select(le(position(s4), add(position(t1), position(P))), 0.0, -inf))
    for t1
      tile5[-t0+t1] = max s4 of tile3[-t0+t1, -s3+s4] from tile2[-t0+t1]
    for t1
      tile6[-t0+t1] = exp(sub(tile2[-t0+t1], tile5[-t0+t1]))
    for t1, s4
      tile4[-t0+t1, -s3+s4] = exp(sub(tile3[-t0+t1, -s3+s4], tile5[-t0+t1]))
    for t1
      tile1[-t0+t1] = sum s4 of tile4[-t0+t1, -s3+s4] from mul(tile1[-t0+t1], tile6[-t0+t1])
    for t1, e2
      tile0[-t0+t1, e2] = sum s4 of mul(tile4[-t0+t1, -s3+s4], @1[s4, e2]) from mul(tile0[-t0+t1, e2], tile6[-t0+t1])
    for t1
      tile2[-t0+t1] = tile5[-t0+t1]
  end
  for t5, e2
    @2[t5, e2] = div(tile0[-t0+t5, e2], tile1[-t0+t5])
"#;
