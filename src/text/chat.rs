pub struct ChatTemplate; pub struct RenderOptions;
