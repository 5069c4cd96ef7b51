//! Feed-forward networks (FFN): dense, or a mixture of experts (MoE).
//!
//! In: the numbers of a model. Out: widths, activations and how experts are selected, as plain data.

/// A dense FFN.
#[derive(Clone, Debug, PartialEq)]
pub struct Dense {
    /// FFN width.
    pub ff: usize,
    /// Activation function.
    pub activation: Activation,
    /// Whether the activation gates a second projection.
    pub is_gated: bool,
    /// Whether there is a norm before the last projection (`BitNet`).
    pub has_norm: bool,
}

/// Activation functions of an FFN.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `x · sigmoid(x)`.
    Silu,
    /// GELU by its `tanh` approximation.
    GeluTanh,
    /// GELU.
    Gelu,
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)²`.
    SquaredRelu,
    /// xIELU: `positive · x² + beta · x`, and below zero `negative · (e^x - 1 - x) + beta · x` (Apertus).
    Xielu {
        /// Factor on squares.
        positive: f32,
        /// Factor below zero.
        negative: f32,
        /// Slope at zero.
        beta: f32,
    },
    /// `x · sigmoid(alpha · x)` with `x` up to `limit`; the gated projection is clamped to `±limit`, then 1 is added.
    Clamped {
        /// Factor inside the sigmoid.
        alpha: f32,
        /// Largest value of either projection.
        limit: f32,
    },
}

/// A mixture of experts (MoE).
#[allow(clippy::struct_excessive_bools, reason = "each is a part that a family has or has not")]
#[derive(Clone, Debug, PartialEq)]
pub struct Experts {
    /// Routed experts.
    pub n_routed: usize,
    /// Routed experts per token.
    pub top_k: usize,
    /// FFN width of all shared experts together, which every token uses; 0 where there are none.
    pub shared_ff: usize,
    /// Whether a sigmoid of each token scales the output of the shared experts.
    pub has_shared_gate: bool,
    /// FFN width of one expert.
    pub ff: usize,
    /// Activation function.
    pub activation: Activation,
    /// Whether the activation gates a second projection.
    pub is_gated: bool,
    /// Whether experts and router have biases.
    pub has_biases: bool,
    /// Scoring function of the router.
    pub gate: Gate,
    /// Whether a stored bias is added to the scores for the selection of experts.
    pub router_bias: bool,
    /// Whether the routing weights of the selected experts are normalised to sum to 1.
    pub renorm: bool,
    /// Factor on the routing weights.
    pub scale: f32,
    /// Soft cap of the router's logits.
    pub cap: Option<f32>,
    /// Whether the routing weight scales an expert's input instead of its output (Llama 4).
    pub weighs_input: bool,
    /// Groups of experts, for group-limited routing.
    pub groups: Option<Groups>,
    /// Whether gate and up projections are stored as one matrix.
    pub is_joint: bool,
}

/// Group-limited routing: the top-k experts come from the best groups only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    /// Groups.
    pub n_groups: usize,
    /// Groups per token.
    pub top_k: usize,
    /// A group's score is the sum of the scores of this many of its best experts.
    pub score_top_k: usize,
}

/// Scoring functions of a router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid of each expert's logit.
    Sigmoid,
    /// Softmax over the selected experts.
    SoftmaxAfterTopK,
    /// `√softplus`, that is `√(ln(1 + e^x))`, of each expert's logit.
    SqrtSoftplus,
}

impl Dense {
    /// SwiGLU of this width.
    pub fn swiglu(ff: usize) -> Self {
        Self { ff, activation: Activation::Silu, is_gated: true, has_norm: false }
    }
}
