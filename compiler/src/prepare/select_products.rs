//! Writes down which nests are products of matrices, for devices that multiply whole rows.
//!
//! In: a kernel. Out: the same kernel; each nest that is a product says which of its loops are rows, columns and the
//! sum. What is computed is the same. `recognise/product.rs` finds them, and says why a nest is none.

use crate::kernel::Kernel;
use crate::kernel::walk::each_nest;
use crate::options::Options;
use crate::recognise::product::product;

pub(super) fn select_products(kernel: &Kernel, _: &Options) -> Kernel {
    let mut selected = kernel.clone();
    for (part, new) in kernel.parts.iter().zip(&mut selected.parts) {
        each_nest(&mut new.body, &mut |nest| nest.product = product(kernel, part, nest).ok());
    }
    selected
}
