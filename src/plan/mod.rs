//! Floor 3. Recording of operations, buffer assignment, the compiled plan and its replay.
