//! Memory on the stack of a thread that a function fills itself.
//!
//! In: a type of which any bytes are a value. Out: so many such values, of which nothing is known. To clear the memory
//! of a panel first would take as long as to multiply a vector with it.

use std::arch::asm;
use std::mem::MaybeUninit;

use bytemuck::AnyBitPattern;

pub(super) struct Room<T, const N: usize>(MaybeUninit<[T; N]>);

impl<T: AnyBitPattern, const N: usize> Room<T, N> {
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
