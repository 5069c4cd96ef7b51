//! Apertus: an activation with numbers of each block, xIELU.
//!
//! In: the hyper-parameters of a file. Out: a config.
//! Its logarithms of factors are stored so that `softplus` makes them positive. Its `eps` keeps the derivative of an
//! exponential finite and changes no result by more than itself.

use fusebox_runtime::error::{Error, Place};

use crate::config::network::Activation;
use crate::config::{Config, Network};
use crate::families::decoder;
use crate::families::family::Family;
use crate::hparams::Hparams;

/// The activation, whose numbers are read later.
pub(super) const XIELU: Activation = Activation::Xielu { positive: 0.0, negative: 0.0, beta: 0.0 };

/// Reads the config of a file.
///
/// # Errors
/// Names the hyper-parameter that is missing or invalid.
pub(super) fn read(hparams: Hparams<'_>, family: &Family) -> Result<Config, Error> {
    let mut config = decoder::read(hparams, family)?;
    for (layer, block) in config.blocks.iter_mut().enumerate() {
        let number = |name: &str| {
            let found =
                hparams.number_of_block(layer, &format!("xielu.{name}"), &format!("mlp.act_fn.{name}"));
            found.filter(|number| number.is_finite()).ok_or_else(|| {
                let place = Place::Key(format!("xielu.{name}"));
                Error::input(
                    &hparams.path(),
                    place,
                    format!("expected a number for block {layer}, found none"),
                )
            })
        };
        let (positive, negative, beta) = (number("alpha_p")?, number("alpha_n")?, number("beta")?);
        if let Network::Dense(dense) = &mut block.network {
            dense.activation = Activation::Xielu {
                positive: softplus(positive) as f32,
                negative: (beta + softplus(negative)) as f32,
                beta: beta as f32,
            };
        }
    }
    Ok(config)
}

/// `ln(1 + e^x)`
fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}
