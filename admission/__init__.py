"""The webhook: a review comes in, a patch or a refusal goes out."""
