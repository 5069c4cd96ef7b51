//! Loops that end at a number in memory: nothing after their end is read.
//!
//! In: kernels as text, and memory that is no number wherever nothing may be read. Out: the numbers of the interpreter.

use super::*;
use crate::codegen::samples::MASKED;

/// Sums over the pages of three sequences, `{R}` rows each, up to the length of each.
const PAGED: &str = r#"kernel "paged" row-reduction
  read @0 length : i32[b:3]
  read @1 pages : i32[b:3, p:4]
  read @2 x : f32[page:12, r:{R}]
  write @3 y : f32[b:3]
part
  tile tile0 : f32[]
  tile tile1 : f32[2, {R}]
  var b0 in 0..3
  var p1 in blocks of 2 step 2 from 0 to 4 until (lookup(@0[b0], 1000)/{R})+1
  var p2 within p1 until (lookup(@0[b0], 1000)/{R})+1
  var r3 in 0..{R} until lookup(@0[b0], 1000)-{R}*p2+1
  grid b0
  tile0[] = 0.0
  loop p1
    for p2, r3
      tile1[-p1+p2, r3] = mul(@2[lookup(@1[b0, p2], 12), r3], 2.0)
    tile0[] = sum p2, r3 of tile1[-p1+p2, r3] from tile0[]
  end
  @3[b0] = tile0[]
"#;

#[test]
fn nothing_behind_the_end_of_a_sequence_is_read() {
    for rows in [4, 64] {
        let text = PAGED.replace("{R}", &rows.to_string());
        let ints =
            |numbers: &[usize]| numbers.iter().flat_map(|n| (*n as i32).to_le_bytes()).collect::<Vec<u8>>();
        for lengths in [[1, rows, 4 * rows], [rows - 1, 2 * rows + 1, 3], [3 * rows, 1, 1]] {
            let table = [7, 2, 9, 0, 3, 11, 1, 5, 4, 8, 10, 6];
            let mut x = vec![f32::NAN; 12 * rows];
            for (sequence, length) in lengths.iter().enumerate() {
                for slot in 0..*length {
                    let page = table[4 * sequence + slot / rows];
                    x[page * rows + slot % rows] = (slot % 5) as f32 - 2.0;
                }
            }
            let last = lengths.map(|length| length - 1);
            check(&text, &[], &[ints(&last), ints(&table), encoded(Format::F32, &x)], 1);
            let sum = |length: usize| (0..length).map(|slot| 2.0 * ((slot % 5) as f32 - 2.0)).sum::<f32>();
            let expected = encoded(Format::F32, &lengths.map(sum));
            let code = code(&text);
            let (mut y, mut scratch) = (vec![0; 12], vec![0; code.scratch_bytes()]);
            let [last, table, x] = [ints(&last), ints(&table), encoded(Format::F32, &x)];
            let mut buffers =
                [Bytes::Read(&last), Bytes::Read(&table), Bytes::Read(&x), Bytes::Write(&mut y)];
            let tasks: Vec<_> = (0..3).map(|task| task..task + 1).collect();
            code.run(&tasks, &mut buffers, &[], &mut scratch).unwrap();
            assert_eq!(y, expected, "{lengths:?}");
        }
    }
}

#[test]
fn positions_behind_all_queries_of_a_task_are_left_out() {
    let all = MASKED.replace(" until t0+P+2", "");
    assert_ne!(all, MASKED);
    for position in 0..=4 {
        check(MASKED, &[position], &inputs(MASKED), 1);
        check(&all, &[position], &inputs(&all), 1);
    }
}
