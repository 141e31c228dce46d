"""The emulator by its public interface alone: what it runs, what it finds wrong, and where it follows the device."""
