"""Names and signatures of upstream that its own tests call, and which of ours stand in for them. The core is free of them."""
