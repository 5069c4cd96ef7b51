//! Bisection: the first of many steps after which something is wrong.
//!
//! In: the number of steps, and a judge of what some of them lead to. Out: the step at fault.

/// The step that made it wrong, counted from 0; nothing where all `n` steps leave it right.
///
/// Takes it that what is wrong after few steps stays wrong after more, and that it is right before the first.
pub fn first_wrong(n: usize, is_right_after: impl Fn(usize) -> bool) -> Option<usize> {
    if n == 0 || is_right_after(n) {
        return None;
    }
    let (mut right, mut wrong) = (0, n);
    while right + 1 < wrong {
        let middle = usize::midpoint(right, wrong);
        if is_right_after(middle) {
            right = middle;
        } else {
            wrong = middle;
        }
    }
    Some(wrong - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_wrong_step_is_found_wherever_it_is() {
        for n in 0..20 {
            assert_eq!(first_wrong(n, |_| true), None);
            for wrong in 0..n {
                assert_eq!(first_wrong(n, |steps| steps <= wrong), Some(wrong));
            }
        }
    }
}
