//! An uninitialised buffer on the stack.
//!
//! In: a type of which all bit patterns are values. Out: an array of it with arbitrary content, which the caller fills.
//! Zeroing the memory of a panel first would take as long as multiplying a vector with it.

use std::arch::asm;
use std::mem::MaybeUninit;

use bytemuck::AnyBitPattern;

pub(super) struct StackBuffer<T, const N: usize>(MaybeUninit<[T; N]>);

impl<T: AnyBitPattern, const N: usize> StackBuffer<T, N> {
    #[inline(always)]
    pub(super) const fn new() -> Self {
        Self(MaybeUninit::uninit())
    }

    #[inline(always)]
    pub(super) fn open(&mut self) -> &mut [T; N] {
        // SAFETY: nothing is done. But it could write to every byte, and the compiler has to suppose that it did.
        unsafe { asm!("/* {0} */", in(reg) self.0.as_mut_ptr(), options(nostack, preserves_flags)) };
        // SAFETY: so all bytes have been written, and any bytes are a value.
        unsafe { self.0.assume_init_mut() }
    }
}
