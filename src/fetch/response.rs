//! What a server's answer to a ranged request means.
