//! Harbor task packages (policy 18–25, harbor.md).
