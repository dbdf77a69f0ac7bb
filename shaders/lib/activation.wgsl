// Activations of gated MLPs. Needs: GELU (tanh-GELU instead of SiLU).
fn activate(x: f32) -> f32 {
  if (GELU) {
    // The clamp keeps tanh from overflowing under fast-math; tanh(10) is 1 in f32.
    let inner = clamp(0.7978845608 * (x + 0.044715 * x * x * x), -10.0, 10.0);
    return 0.5 * x * (1.0 + tanh(inner));
  }
  return x / (1.0 + exp(clamp(-x, -80.0, 80.0)));
}
